"""Figures drawn with matplotlib: training curves, layers, methods."""

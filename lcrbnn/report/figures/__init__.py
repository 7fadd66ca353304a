"""Figures that are drawn with matplotlib: training curves, layers, methods."""

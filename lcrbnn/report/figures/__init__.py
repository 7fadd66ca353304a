"""Figures that are drawn with matplotlib, which show training curves, layers and methods."""

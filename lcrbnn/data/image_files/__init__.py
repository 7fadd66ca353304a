"""Data sets of image files in folders, zip or tar archives; needs no torch."""

"""Data sets of image files in folders, zip archives or tar archives. This folder does not import torch."""

"""Errors on corrupted test images, the mean corruption error, and linear heads that are trained again."""

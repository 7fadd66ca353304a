"""Errors on corrupted test images, mean corruption error, refitted linear heads."""

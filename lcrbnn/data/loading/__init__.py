"""Data loading: from image arrays or image files to augmented batches on a device."""

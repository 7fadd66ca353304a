"""Data loading turns image arrays or image files into augmented batches on a device."""

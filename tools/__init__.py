"""Scripts around the package."""

"""Data sets, as arrays."""

from lcrbnn.data.digits import Split, load_digits

__all__ = ["Split", "load_digits"]

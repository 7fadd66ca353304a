"""Experiments and the pictures of them."""

"""Recipes (TOML files with training settings) and the functions that read them."""

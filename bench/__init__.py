"""Benchmarks that a person starts by hand. Each benchmark prints ratios to a baseline of the same run."""

"""Benchmarks that a person starts by hand. Each prints ratios to a baseline that is measured in the same run."""

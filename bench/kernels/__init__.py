"""Benchmarks of single kernels and of power iteration."""

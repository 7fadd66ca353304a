"""Benchmarks of loading images from files."""

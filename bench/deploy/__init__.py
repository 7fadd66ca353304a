"""Benchmarks of the inference engine and of the corruptions."""

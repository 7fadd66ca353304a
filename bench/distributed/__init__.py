"""Benchmarks and a model of training with several processes."""

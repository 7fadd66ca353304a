"""Benchmarks of training steps: throughput, memory, and agreement of the compiled with the eager step."""

"""Benchmarks of training steps: speed, memory, and agreement between compiled and eager steps."""

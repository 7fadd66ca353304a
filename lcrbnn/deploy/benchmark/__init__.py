"""Comparison of the engine with other inference runtimes."""

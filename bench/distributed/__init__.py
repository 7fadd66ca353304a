"""Benchmarks of training with several processes, and a model that predicts its speed."""

"""Measurements of trained networks: accuracy, robustness, attacks, Lipschitz analysis, cost."""

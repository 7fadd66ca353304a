"""Measurements of trained networks, such as accuracy, robustness, attacks, Lipschitz analysis and cost."""

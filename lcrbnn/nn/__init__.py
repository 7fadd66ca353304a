"""Building blocks of binary networks, such as layers, methods, models and GPU kernels."""

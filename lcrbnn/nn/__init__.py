"""Building blocks of binary networks: layers, methods, models, GPU kernels."""

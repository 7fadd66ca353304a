"""Export rules of layers and functions, by kind. Each rule adds the nodes that compute the same as PyTorch."""

"""Training with several processes, with collective calls, an all-reduce of gradients and synchronized batch norm."""

"""Training with several processes: collective calls, all-reduce of gradients, synchronized batch norm."""

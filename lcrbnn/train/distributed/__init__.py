"""Training with several processes: collective calls, gradient all-reduce, synchronized batch norm."""

"""From a trained network to a .bnn file and the engine that runs it."""

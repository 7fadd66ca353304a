"""Deployment of a trained network, which consists of the export to a .bnn file and the engine that runs the file."""

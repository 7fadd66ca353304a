"""The .bnn file format, a NumPy reference implementation, and the compiled engine. No module here imports torch."""

"""The .bnn file format, a reference implementation in NumPy, and the compiled engine. No module here imports torch."""

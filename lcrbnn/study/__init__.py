"""A study trains variants of one recipe with the same seeds and compares the variants in pairs of runs."""

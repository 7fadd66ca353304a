"""Studies: variants of one recipe are trained with the same seeds and compared in pairs of runs."""

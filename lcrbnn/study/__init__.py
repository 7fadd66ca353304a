"""Studies: variants of one recipe, trained with the same seeds and compared in pairs."""

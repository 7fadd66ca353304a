"""Other regularisers to set beside retention: spectral normalisation, defensive quantisation."""

from lcrbnn.regularizers.table import REGULARIZERS, Regularizer

__all__ = ["REGULARIZERS", "Regularizer"]

"""The graph under construction: nodes, layouts of tensors, folding of batch norms, adjusted rounding."""

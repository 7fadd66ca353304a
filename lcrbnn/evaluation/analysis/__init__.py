"""Properties of a network, such as operations, Lipschitz bounds, sensitivity, retention ratios and latent weights."""

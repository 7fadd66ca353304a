"""Cost and behaviour of a network: operations, Lipschitz bounds, sensitivity, retention ratios, latent weights."""

"""Cost and properties of a network: operations, Lipschitz bounds, sensitivity, retention ratios, latent weights."""

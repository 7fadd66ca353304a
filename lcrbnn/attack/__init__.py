"""Adversarial images: attacks on a network inside a ball around each image, and what survives all of them."""

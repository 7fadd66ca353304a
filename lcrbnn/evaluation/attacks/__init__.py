"""Adversarial attacks: they change a test image by at most eps per pixel (Linf ball), so that it is misclassified."""

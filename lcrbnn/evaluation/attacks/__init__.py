"""Adversarial attacks, which change pixels of a test image by at most eps (Linf ball) to cause a wrong prediction."""

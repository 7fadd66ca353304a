"""Adversarial attacks: images inside an Linf ball around each test image, and the accuracy under all attacks."""

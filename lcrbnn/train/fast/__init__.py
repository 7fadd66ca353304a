"""The compiled training step and its fused modules."""

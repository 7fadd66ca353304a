"""Corrupted images, and how a network bears them: CORRUPTIONS, official folders, scores."""

"""Export rules of binary layers: signs, thresholds, scales, and sums of binary products."""

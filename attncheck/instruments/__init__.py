"""From evidence to numbers: exact rows in tiles, probes through the model's own kernel, power iterations."""

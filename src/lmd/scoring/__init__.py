"""From labels and probabilities to numbers with intervals; plain numpy, no torch."""

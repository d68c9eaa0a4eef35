"""Metrics with intervals from labels and probabilities, in plain numpy."""

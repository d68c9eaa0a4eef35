"""Explain predictions: heat maps and nearest training images."""

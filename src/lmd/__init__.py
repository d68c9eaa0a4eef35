"""Long-tailed medical image diagnosis."""

__version__ = "0.1.0"

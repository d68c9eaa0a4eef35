"""A shipped model in use: prediction and export."""

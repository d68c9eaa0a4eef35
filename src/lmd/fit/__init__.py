"""Take a run from a request to a complete folder."""

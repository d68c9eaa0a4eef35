"""Predict with a shipped model."""

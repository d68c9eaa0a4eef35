"""Prediction and export with a shipped model."""

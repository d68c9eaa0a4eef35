"""Figures for papers, from records, predictions and models; matplotlib is loaded when one is drawn."""

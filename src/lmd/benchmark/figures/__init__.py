"""Figures for papers from records, predictions and models; matplotlib is loaded to draw one."""

"""Fit classifiers on frozen features (`lmd calibrate`)."""

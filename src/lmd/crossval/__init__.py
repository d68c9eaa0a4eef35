"""Cross-validate: train, pool and report the folds."""

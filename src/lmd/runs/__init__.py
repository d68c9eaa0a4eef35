"""Complete runs: prepare, train, score, record, report."""

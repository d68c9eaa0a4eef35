"""The whole way of one run: prepare, train, score, record, report."""

"""Draw the charts and numbers of reports."""

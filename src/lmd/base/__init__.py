"""Errors, files, processes and the progress display, used by all other packages."""

"""A web page and a REST API for shipped models."""

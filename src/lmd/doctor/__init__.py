"""The doctor: finds what is wrong with a data set, and writes a cleaned manifest."""

"""Read and write the files of a run; needs no torch."""

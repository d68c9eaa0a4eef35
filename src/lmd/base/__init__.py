"""What every room stands on: errors, files, processes, the progress display."""

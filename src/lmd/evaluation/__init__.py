"""Score a finished run again, or score it on other images."""

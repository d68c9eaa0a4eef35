"""Images and labels: sources, splits, decoded pixels, views and batches; recipes and the doctor."""

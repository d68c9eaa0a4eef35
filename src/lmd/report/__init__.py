"""The pages of a run, self-contained and written from its files alone; the model card; charts."""

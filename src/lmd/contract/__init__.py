"""What a method is to the training loop, and the parts that methods are made of."""

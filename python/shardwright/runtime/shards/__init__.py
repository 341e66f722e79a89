"""What a rank holds of the model, and what the model's state dict is of that."""

"""What makes a parallel model look like the model: names, attributes, modes, methods."""

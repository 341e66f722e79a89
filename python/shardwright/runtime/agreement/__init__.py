"""What ranks make sure of, and decide, together."""

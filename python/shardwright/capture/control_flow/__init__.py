"""Branches of a model's Python on the values of tensors, where they can be followed."""

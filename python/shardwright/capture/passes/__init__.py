"""Passes: what is rewritten in the graph that PyTorch exports."""

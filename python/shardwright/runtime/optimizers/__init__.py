"""Optimizers over shards, and clipping."""

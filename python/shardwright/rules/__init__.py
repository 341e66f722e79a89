"""Sharding rules beside the operators that they are of, on real tensors."""

"""Batches: padded to a few lengths, and the part of a data set that a rank loads."""

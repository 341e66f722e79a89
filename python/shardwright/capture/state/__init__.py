"""What a model holds: parameters and buffers, where they lie in memory, and what it keeps in Python."""

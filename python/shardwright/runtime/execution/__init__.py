"""One call of a program on a rank, from what the caller gives to what it gets."""

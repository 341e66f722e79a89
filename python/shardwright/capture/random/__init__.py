"""Random numbers: which operators draw them, and that both sides of a comparison draw the same."""

"""Models and tools of other packages."""

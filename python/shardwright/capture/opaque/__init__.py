"""What is not traced: it runs in the program as the Python it is, as one operator of the graph."""

"""Static inputs: a program is specialised for their values, which the model reads in Python."""

"""What PyTorch does with parameters and gradients, looked at where a rank has only parts of them."""

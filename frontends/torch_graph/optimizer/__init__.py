"""What a PyTorch optimizer does to the parameters of a module, in JAX."""

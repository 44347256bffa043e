"""A PyTorch step in stages: cut, each different stage as one JAX function."""

"""A distributed PyTorch program, run on fake tensors as one rank of a world that is not there."""

"""A PyTorch module as graphs of ATen operators: exported, cut into blocks, differentiated."""

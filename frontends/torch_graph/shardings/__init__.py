"""What the user said about shardings, and how the tensors of a PyTorch step lie on the mesh."""

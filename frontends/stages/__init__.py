"""What models of JAX and of PyTorch share when they are cut into the stages of a pipeline."""

"""What each PyTorch operator computes, in JAX: one small function per ATen overload."""

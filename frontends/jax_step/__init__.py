"""A JAX function in: traced and lowered for an abstract mesh."""

"""A whole JAX model, cut into the functions of its pipeline stages."""

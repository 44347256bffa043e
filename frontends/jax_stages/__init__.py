"""Models in stages written in JAX: from what the user gives to one function for each stage."""

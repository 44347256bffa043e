"""JAX scripts as they are: run on devices that are not there, to capture the step that they jit."""

"""JAX on devices that are not there: chips, devices, arrays, and where all of them are put into JAX."""

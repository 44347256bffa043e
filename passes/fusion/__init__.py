"""What a compiler launches: rules that merge rows of a Program into kernels, by target."""

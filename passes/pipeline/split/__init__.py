"""A stage's program, split into the parts that a schedule orders."""

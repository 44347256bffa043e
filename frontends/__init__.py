"""User programs in: each module turns one kind of input into a `Captured` module or a Program."""

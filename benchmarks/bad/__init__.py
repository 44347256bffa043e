"""Bad inputs of every kind, made from good ones, and what Flint does with them."""

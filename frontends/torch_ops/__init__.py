"""What each PyTorch operator computes, in JAX: rows of tables, and functions for what takes more.

PyTorch's documentation says what an operator means; a docstring here says what it leaves open.
"""

"""Small distributed programs of PyTorch, run for real by four processes of gloo and as recorded ranks.

    python -m benchmarks.real_ranks [NAME ...]

What both did in the second step is compared on ranks 0, 1 and 3: collectives, products, operators, peak memory.
"""

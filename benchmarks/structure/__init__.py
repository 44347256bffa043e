"""What the source of a checkout says about itself. Used by `benchmarks/house.py`."""

"""Other people's simulators: run on what Flint writes, and held against what Flint says."""

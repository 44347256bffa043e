"""Every fitted constant of every preset, made again: `python -m benchmarks.fits`.

One module for each kind of data. A module that has a function `fits() -> list[Fit]` is found by
itself; see `benchmarks.fits.fit`.
"""

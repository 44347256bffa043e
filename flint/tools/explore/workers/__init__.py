"""Who evaluates points: processes of this machine, or workers of Dask."""

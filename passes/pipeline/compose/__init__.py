"""One program for each position of a pipeline, put together from parts."""

"""Programs of one position of an axis, compiled: the passes of a pipeline's stages, and steps of pools."""

"""The level `names`: no name, scope, source line, cause, option or digest of the original is left."""

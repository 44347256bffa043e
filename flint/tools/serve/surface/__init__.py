"""What a pass of an engine takes, from a few captures of a model."""

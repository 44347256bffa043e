"""A measurement beside a capture of the same program: where the model and the device differ."""

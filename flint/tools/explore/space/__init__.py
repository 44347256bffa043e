"""What a user asks for: dimensions, their values and conditions; from them all points."""

"""The text form of a Program: `printer` writes it, `parser` reads it back, exactly."""

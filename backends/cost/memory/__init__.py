"""What a device holds over a step."""

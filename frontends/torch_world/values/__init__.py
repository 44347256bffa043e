"""What is known of tensors that have no data."""

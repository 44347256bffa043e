"""What stands in for flash-attn, 2 and 3."""

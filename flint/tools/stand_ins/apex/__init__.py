"""What stands in for Apex and its extensions, which are modules of their own."""

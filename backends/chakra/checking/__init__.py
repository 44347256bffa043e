"""What is proved of execution traces."""

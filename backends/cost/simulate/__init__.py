"""When each rank class does what, and where the time goes."""

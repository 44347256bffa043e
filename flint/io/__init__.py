"""What is read from, written to and started on the user's machine, with bounds and without leftovers."""

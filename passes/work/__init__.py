"""What operations cost to run, whichever form they were read from."""

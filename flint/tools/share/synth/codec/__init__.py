"""Programs as sequences of steps, from which shapes, bytes and work follow, and back."""

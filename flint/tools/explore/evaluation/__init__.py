"""From points to results: captures that are shared, bounds of memory, estimates."""

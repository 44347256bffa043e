"""What changed between two versions of a program: differences, and budgets in CI."""

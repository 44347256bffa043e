"""Running a program as one rank, in a process of its own, and writing down what it does."""

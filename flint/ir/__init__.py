"""The one graph: programs in columns, what holds of them, the mesh they are for, and their file."""

"""Documents as types: a TypedDict with a field `schema` is one that a command prints.

What prints a document is typed with it, so that mypy finds a key too few or too many. Nothing here
is loaded when a command runs. The string below a field is what readers of the schema get to see.
"""

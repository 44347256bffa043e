"""What `--json` prints: one JSON Schema for each kind of document.

`documents/` says it in types, `*.json` are made of these (`python -m flint.schemas.generate`), and
`catalog` reads the files. See docs/machine-output.md.
"""

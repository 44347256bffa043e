"""What `--json` prints: one JSON Schema for each kind of document.

Documents are declared where they are made; `generate` lists them and writes `*.json`
(`python -m flint.schemas.generate`), which `catalog` reads. See docs/command-line.md.
"""

"""Which configuration: points of a space of meshes, options, machines and software, each estimated.

    space -> points -> evaluate (captures shared) -> results in a study file -> rank, explain, report

The package is not called explore: importing a module of that name would replace the
function `flint.explore`.

Captures and estimates are those of `flint capture` and `flint estimate`; nothing here prices anything.
"""

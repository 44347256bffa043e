"""Machines of points: clusters with changes, which `flint.tools.explore.machine.cluster_changes` makes."""

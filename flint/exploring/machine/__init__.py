"""Machines of points: clusters with changes, which `flint.exploring.machine.cluster_changes` makes."""

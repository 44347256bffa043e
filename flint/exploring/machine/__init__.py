"""Machines of points: clusters with changes, which `flint.exploring.cluster_changes` makes."""

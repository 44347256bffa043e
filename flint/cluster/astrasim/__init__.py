"""ASTRA-sim's own files, read as a cluster."""

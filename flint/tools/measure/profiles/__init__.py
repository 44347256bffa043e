"""Profiles: what profilers recorded of steps that ran, as workloads."""

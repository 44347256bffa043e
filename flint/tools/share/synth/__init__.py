"""Workloads that never were: a generative model of programs, trained on captures."""

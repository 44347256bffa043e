"""Workloads of public models to download: what they are, and what makes, checks and packs them."""

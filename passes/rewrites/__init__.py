"""Rewrites of a whole program that compilers do before they make kernels."""

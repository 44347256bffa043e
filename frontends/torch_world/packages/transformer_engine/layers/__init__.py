"""Modules with weights."""

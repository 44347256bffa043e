"""Packages of kernels that need a GPU to install: stand-ins for them while a program is recorded."""

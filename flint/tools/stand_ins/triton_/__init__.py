"""What stands in for Triton: kernels are recorded where they are launched, and not compiled."""

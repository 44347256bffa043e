"""How long kernels run on a chip."""

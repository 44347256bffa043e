"""What stands in for Transformer Engine's PyTorch package, version 2.6."""

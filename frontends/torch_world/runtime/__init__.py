"""What a program on the virtual device meets instead of CUDA, NCCL and the other ranks."""

"""The virtual accelerator: what C++ knows of it, and what a program sees of it: CUDA."""

"""What was measured: profiles, measured steps and kernels, and the constants fitted to them."""

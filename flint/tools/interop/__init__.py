"""Programs and clusters as neighbouring tools write them."""

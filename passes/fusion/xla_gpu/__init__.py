"""What XLA's compiler for GPUs does beside fusing: what it joins, splits and copies."""

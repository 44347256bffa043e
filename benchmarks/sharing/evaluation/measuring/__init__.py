"""What is measured of one workload, real or made."""

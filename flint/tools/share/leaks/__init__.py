"""What still identifies in a workload that is to be shared."""

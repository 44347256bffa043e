"""What-if models: a captured workload with other sizes, layers and mesh, without its source."""

"""Where XLA's partitioner decides otherwise than Shardy: reshards that lead Shardy to XLA's choice."""

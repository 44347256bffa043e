"""Files of other tools in: StableHLO and XLA HLO."""

"""One walk from a partitioned StableHLO module to a Program. `walk` has it, its modules by name."""

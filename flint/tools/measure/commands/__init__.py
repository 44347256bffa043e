"""The command line of this tool: calibrate, compare and import."""

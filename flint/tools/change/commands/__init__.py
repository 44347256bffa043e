"""The command line of this tool: diff, run and verify."""

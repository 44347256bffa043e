"""The command line of this tool: explore."""

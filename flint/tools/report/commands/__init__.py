"""The command line of this tool: report."""

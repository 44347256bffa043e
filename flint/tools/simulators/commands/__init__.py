"""The command line of this tool: simulate."""

"""The command of this tool."""

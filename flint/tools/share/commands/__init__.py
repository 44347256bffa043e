"""The command line of this tool: anonymize, grow, learn and synth."""

"""ASTRA-sim's files and rules, without ASTRA-sim."""

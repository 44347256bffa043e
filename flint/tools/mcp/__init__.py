"""Flint for agents and editors: a server of the Model Context Protocol over the JSON of eight commands."""

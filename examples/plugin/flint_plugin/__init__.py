"""A chip family, a stand-in and a command for Flint."""

"""The commands. A module of this folder is one: a function, or an app of several, by its name."""

"""A study as one HTML file, with the parts of the report of an estimate."""

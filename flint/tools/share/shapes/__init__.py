"""The level `shapes`: other dimensions, and totals and step times that stay within a bound."""

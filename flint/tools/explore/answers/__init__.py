"""From the results of a study to what a user asks: which is best, why, and what was omitted."""

"""Results that last: the file of a study, what still holds of it, and which points are looked at."""

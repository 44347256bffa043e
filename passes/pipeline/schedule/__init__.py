"""Schedules: orders of passes, their times, and their pictures."""

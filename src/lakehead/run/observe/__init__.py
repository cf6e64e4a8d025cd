"""Subscribers of a run's events: displays, logs, the summary, and the state's history."""

"""The events of a run, and how they reach their subscribers."""

"""The events of a run and how they reach their subscribers, and warnings that are not told too often."""

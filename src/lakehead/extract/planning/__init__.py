"""Which windows of a table are read: decided from what is known, without touching anything."""

"""Programs that show Lakehead at work."""

"""Databases that tables are read from, each described by its dialect. Values arrive exactly or are refused."""

"""Databases that rows are read from: what they hold, what of it can be carried exactly, and the reading itself."""

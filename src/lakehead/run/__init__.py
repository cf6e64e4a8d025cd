"""The processes: one module for each command, and the only readers of flags and environment."""

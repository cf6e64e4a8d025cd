"""The one stream of events that a process tells, and how it reaches whoever listens."""

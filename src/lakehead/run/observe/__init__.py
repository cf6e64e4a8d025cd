"""Who listens to a run: logs, the state, a heartbeat, a terminal, and the summary at its end."""

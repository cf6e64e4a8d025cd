"""The commands, their configuration and wiring; nothing else reads options or the environment."""

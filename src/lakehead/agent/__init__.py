"""What sends records to a gateway: the beginning of the agent."""

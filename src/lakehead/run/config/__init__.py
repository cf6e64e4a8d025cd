"""The configuration file: its models, and validation that reports every problem at once."""

"""How anything reaches a table: one landing protocol, in which rows and progress commit together."""

"""What is known of the sources' catalogues: snapshots of tables, what has changed since, and what is done about it."""

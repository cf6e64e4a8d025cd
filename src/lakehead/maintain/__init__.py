"""Table maintenance: compaction, snapshot expiry, removal of orphan files, and rebuilding the state."""

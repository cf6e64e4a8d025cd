"""Tables pulled from databases: planned in slices, read, landed raw, merged."""

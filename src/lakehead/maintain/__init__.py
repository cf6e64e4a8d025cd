"""Keeping tables in order: what nobody needs any more is removed, and what was lost is rebuilt."""

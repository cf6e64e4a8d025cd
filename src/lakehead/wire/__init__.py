"""Bytes sent and stored: pure codecs that believe nothing they read."""

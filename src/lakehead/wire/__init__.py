"""Codecs for everything that is sent or stored: pure functions that check all input."""

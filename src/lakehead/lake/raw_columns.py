"""The names of our own columns of raw tables that maintenance and loads both use. Tasks import this module."""

LOAD_DATE, SLICE, GENERATION = "_load_date", "_slice", "_generation"

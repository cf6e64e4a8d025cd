"""How far we got, in one small SQL database: an index of the lake that can be rebuilt from it."""

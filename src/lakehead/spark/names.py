"""Names in Spark's SQL."""


def quoted(*words: str) -> str:
    """A column's name, or a table's with all that stands before it."""
    return ".".join(f"`{word.replace('`', '``')}`" for word in words)

"""The ways to merge changes into a mirror. The configuration imports it, so it imports nothing that starts a JVM."""

from enum import StrEnum


class MergeLane(StrEnum):
    """How changes are merged into a mirror."""

    ARROW = "arrow"
    """In Arrow, in Spark's tasks; Spark's MERGE merges what that cannot."""

    SPARK = "spark"
    """Always with Spark's MERGE."""

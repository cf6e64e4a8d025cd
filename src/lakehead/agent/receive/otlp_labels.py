"""Attributes of OTLP as labels of records: made once, and remembered in the form that Arrow takes.

Senders tell the same series again and again. The bytes of their attributes are looked up as a whole, and mostly known.
"""

from array import array
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakehead.agent.receive.arrow_columns import joined_texts, offsets
from lakehead.agent.receive.otlp_messages import VALUE_FIELDS, Tail, parse
from lakehead.agent.receive.otlp_values import read_pair

SCOPE_PREFIX = b"otel_scope_"
"""Begins the labels that tell a series' instrumentation scope, as Prometheus has them."""

NO_RECORDED_VALUE = 1
"""The flag of a data point that says that its series has ended."""

_WORTH_KEEPING = 4096
"""The largest set of labels that is remembered, in bytes."""


class LabelSet(NamedTuple):
    """The labels of one record, by ascending key, or why it cannot have them."""

    size: int
    """How many they are."""

    keys: bytes
    key_lengths: bytes
    """An int32 each, as are the others."""

    texts: bytes
    text_lengths: bytes
    fault: str = ""
    """What is wrong with them; empty if nothing is."""

    is_stale: bool = False
    """Whether the point that they were read with says that it has no value."""

    @classmethod
    def of(cls, labels: Mapping[bytes, bytes], fault: str = "") -> "LabelSet":
        """Return labels in the order of their keys, which is that of their bytes."""
        keys = sorted(labels)
        texts = [labels[key] for key in keys]
        return cls(len(keys), b"".join(keys), _lengths(keys), b"".join(texts), _lengths(texts), fault)


def label_column(of: pa.DataType, sets: Sequence[LabelSet]) -> pa.MapArray:
    """Return a column of maps of text to text."""
    key_lengths = np.frombuffer(b"".join([each.key_lengths for each in sets]), np.int32)
    text_lengths = np.frombuffer(b"".join([each.text_lengths for each in sets]), np.int32)
    return pa.MapArray.from_arrays(
        offsets(np.fromiter((each.size for each in sets), np.int64, len(sets))),
        joined_texts(key_lengths, [each.keys for each in sets]),
        joined_texts(text_lengths, [each.texts for each in sets]),
        type=of,
    )


class KnownAttributes:
    """The attributes that were read lately, up to a bound in bytes: then it forgets all. Threads may share it."""

    def __init__(self, memory_bytes: int = 32 << 20) -> None:
        self._memory_bytes = memory_bytes
        self._used = 0
        self._pairs: dict[bytes, tuple[bytes, bytes]] = {}
        self._sets = AttributeSets(self)

    def sets(self) -> "AttributeSets":
        """Return the sets of attributes without labels that others have too."""
        return self._sets

    def pairs(self, attributes: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the key and text of each attribute. Raises `BadBody` if one is none."""
        known = self._pairs
        return [known.get(raw) or self._read(raw) for raw in attributes]

    def makes_room(self, size: int) -> bool:
        """Return whether something of this size shall be remembered. All that is may be forgotten for it."""
        if size > _WORTH_KEEPING:
            return False
        self._used += size
        if self._used > self._memory_bytes:
            self.forget()
            self._used = size
        return True

    def forget(self) -> None:
        """Forget everything. What is in use by a request stays with it."""
        self._pairs = {}
        self._sets = AttributeSets(self)

    def _read(self, raw: bytes) -> tuple[bytes, bytes]:
        pair = read_pair(raw)
        if self.makes_room(3 * len(raw) + 300):
            self._pairs[raw] = pair
        return pair


class AttributeSets(dict[tuple[bytes, ...], LabelSet]):
    """The labels for each sequence of attributes: looked up, and made if they are not known.

    `common` are labels that each of them has, unless it has an attribute of that name; `fault` is what is wrong with
    those. If a sequence has a key twice, its last value counts, and the labels have a fault.
    """

    def __init__(self, known: KnownAttributes, common: Mapping[bytes, bytes] | None = None, *, fault: str = "") -> None:
        super().__init__()
        self._known = known
        self._common = common or {}
        self._fault = fault

    def __missing__(self, attributes: tuple[bytes, ...]) -> LabelSet:
        labels = self.made(attributes)
        if self._known.makes_room(sum(map(len, attributes)) + 60 * len(attributes) + size_of(labels) + 600):
            self[attributes] = labels
        return labels

    def made(self, attributes: Sequence[bytes]) -> LabelSet:
        """Return labels that are not known, and do not remember them. Raises `BadBody` if an attribute is none."""
        pairs = self._known.pairs(attributes)
        own = dict(pairs)
        fault = self._fault
        if len(own) < len(pairs) and not fault:
            fault = f"it has the attribute {twice(pairs)} twice"
        return LabelSet.of({**self._common, **own}, fault)


class MetricLabels(KnownAttributes):
    """Which labels the samples of a metric get, besides the attributes of the data point, which win.

    Attributes of the resource: all, or those with the given names. And unless `scope` is False, `otel_scope_name`,
    `otel_scope_version` and `otel_scope_<attribute>`, where they are told. It remembers those that were made lately.
    """

    def __init__(
        self,
        *,
        resource_attributes: Collection[str] | None = None,
        scope: bool = True,
        memory_bytes: int = 32 << 20,
    ) -> None:
        super().__init__(memory_bytes)
        self._resource_keys = None if resource_attributes is None else {key.encode() for key in resource_attributes}
        self._scope = scope
        self._series: dict[object, SeriesLabels] = {}

    def of(self, resource: Any, scope: Any) -> "SeriesLabels":
        """Return the labels for points of a resource and scope. Raises `BadBody` if an attribute is none."""
        told = (tuple(resource.attributes), scope.name, scope.version, tuple(scope.attributes))
        return self._series.get(told) or self._made(told)

    def forget(self) -> None:
        """Forget everything. What is in use by a request stays with it."""
        super().forget()
        self._series = {}

    def _made(self, told: tuple[tuple[bytes, ...], str, str, tuple[bytes, ...]]) -> "SeriesLabels":
        resource, name, version, scope = told
        of_resource, of_scope = self.pairs(resource), self.pairs(scope)
        common = {key: text for key, text in of_resource if self._resource_keys is None or key in self._resource_keys}
        if self._scope:
            common |= {SCOPE_PREFIX + key: text for key, text in of_scope}
            common |= {
                SCOPE_PREFIX + key: text.encode() for key, text in ((b"name", name), (b"version", version)) if text
            }
        fault = ""
        for pairs, whose in ((of_resource, "resource"), (of_scope, "scope")):
            if len(dict(pairs)) < len(pairs):
                fault = f"its {whose} has the attribute {twice(pairs)} twice"
        series = SeriesLabels(self, common, fault)
        if self.makes_room(sum(map(len, chain(resource, scope))) + 2 * series.common_bytes + 1_000):
            self._series[told] = series
        return series


class SeriesLabels:
    """The labels for points of one resource and scope."""

    def __init__(self, known: KnownAttributes, common: Mapping[bytes, bytes], fault: str) -> None:
        self.sets = AttributeSets(known, common, fault=fault)
        self.tails = TailLabels(known, self.sets)
        self.common_bytes = sum(len(key) + len(text) + 16 for key, text in common.items())
        """What the resource and the scope add to each record."""


class TailLabels(dict[bytes, LabelSet | None]):
    """The labels for what a point ends with after its times and value. None: it has another time or value there."""

    def __init__(self, known: KnownAttributes, sets: AttributeSets) -> None:
        super().__init__()
        self._known = known
        self._sets = sets

    def __missing__(self, tail: bytes) -> LabelSet | None:
        found = parse(Tail, tail)
        if any(map(found.HasField, VALUE_FIELDS)):
            return None
        labels = self._sets.made(found.attributes)
        if found.flags & NO_RECORDED_VALUE:
            labels = labels._replace(is_stale=True)
        if self._known.makes_room(len(tail) + size_of(labels) + 600):
            self[tail] = labels
        return labels


def size_of(labels: LabelSet) -> int:
    """Return how many bytes labels take in a record."""
    return len(labels.keys) + len(labels.texts) + 8 * labels.size


def twice(pairs: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the first key that is there twice, for a message."""
    seen = set()
    for key, _ in pairs:
        if key in seen:
            return shown(key.decode())
        seen.add(key)
    return ""


def shown(text: str) -> str:
    """Return the beginning of a text, for a message."""
    return repr(text if len(text) <= 80 else f"{text[:80]}…")


def _lengths(texts: Sequence[bytes]) -> bytes:
    return array("i", map(len, texts)).tobytes()

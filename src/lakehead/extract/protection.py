"""Columns whose values must not reach the lakehouse as they are: left out, masked or hashed. Tasks import this module.

It works on Arrow, so that a value becomes the same whatever the source's dialect is and however it is read.
"""

import hmac
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from lakehead.extract.protection_rules import Hashed, LeftOut, Masked, Protection
from lakehead.source.port import TableInfo


def exact_names(info: TableInfo, rules: Mapping[str, Protection]) -> dict[str, Protection]:
    """The protections by the exact names of the columns.

    Raises `Misconfigured` if the source has no such column: it may have been renamed, and would be read as it is.
    """
    return {info.column(name).name: rule for name, rule in rules.items()}


def hidden(info: TableInfo, rules: Mapping[str, Protection]) -> TableInfo:
    """The table, with values of protected columns kept out of messages and of the conditions of parts."""
    names = exact_names(info, rules)
    columns = (
        replace(column, secret=True, splits=False) if column.name in names else column for column in info.columns
    )
    return replace(info, columns=tuple(columns))


def protected_schema(columns: pa.Schema, rules: Mapping[str, Protection]) -> pa.Schema:
    """The columns as they are stored: without those left out, and hashes are text."""
    return pa.schema(
        [
            pa.field(column.name, pa.string()) if isinstance(rules.get(column.name), Hashed) else column
            for column in columns
            if not isinstance(rules.get(column.name), LeftOut)
        ]
    )


def protected(batch: pa.RecordBatch, rules: Mapping[str, Protection]) -> pa.RecordBatch:
    """The rows as they are stored."""
    if not rules:
        return batch
    schema = protected_schema(batch.schema, rules)
    columns = [_protected(batch.column(name), rules.get(name)) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _protected(values: pa.Array, rule: Protection | None) -> pa.Array:
    match rule:
        case Masked():
            if not (kinds.is_string(values.type) or kinds.is_large_string(values.type)):
                return pa.nulls(len(values), values.type)
            return pc.if_else(pc.is_valid(values), pa.scalar(rule.text, values.type), pa.scalar(None, values.type))
        case Hashed():
            return _hashed(values, rule.secret.encode())
        case _:
            return values


def _hashed(values: pa.Array, secret: bytes) -> pa.Array:
    binary = kinds.is_binary(values.type) or kinds.is_large_binary(values.type)
    texts = (values if binary else values.cast(pa.string())).dictionary_encode()
    hashes = [
        hmac.digest(secret, each if isinstance(each, bytes) else each.encode(), "sha256").hex()
        for each in texts.dictionary.to_pylist()
    ]
    return pa.array(hashes, pa.string()).take(texts.indices)

"""Reads a few fields of Iceberg's own Avro files, and skips the rest: that takes a fraction of the time of all of them.

PyIceberg reads manifests and manifest lists whole. Its reader can skip fields, but refuses to skip lists, maps and
structs that are not asked for, which are most of a manifest. And it takes the end of the bytes, or zeros, for the end
of the records. Here a file is read whole or not at all: whoever removes what nothing refers to must not believe half
of a file.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import FixedReader, Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor, construct_reader
from pyiceberg.io import FileIO
from pyiceberg.schema import visit_with_partner
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IcebergType, StructType
from pyiceberg.utils.decimal import decimal_required_bytes
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lakehead.wire.errors import Unreadable

_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def read_fields(io: FileIO, uri: str, fields: StructType, length: int = 0) -> list[Record]:
    """The records of an Avro file with these fields alone, which are found by their ids.

    `length` is how many bytes it has at least, if that is known. Raises `OSError`, of which `FileNotFoundError` is one,
    if the file cannot be read, and `Unreadable` if it is damaged.
    """
    with io.new_input(uri).open() as source:
        content = source.read()
    try:
        return list(_records(content, fields, length))
    except Exception as error:  # whatever bytes that nobody wrote lead to
        raise Unreadable(
            f"The file {uri} of the table's metadata is damaged or of an unknown format ({error}). No file was "
            "removed. Restore it from a backup, or roll the table back to a snapshot without it."
        ) from error


def _records(content: bytes, fields: StructType, length: int) -> Iterator[Record]:
    if len(content) < length:
        raise ValueError(f"it has {len(content)} bytes of {length}")
    # Not PyIceberg's faster decoder, which reads past the end of the bytes. It is used inside of blocks below.
    frames = StreamingBinaryDecoder(content)
    header: AvroFileHeader = _HEADER.read(frames)
    if header.magic != MAGIC:
        raise ValueError("it is not an Avro file")
    codec, reader = header.compression_codec(), _reader(header.meta["avro.schema"], fields)
    while frames.tell() < len(content):
        count, block = frames.read_int(), frames.read_bytes()
        if frames.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block does not end where it should")
        block = codec.decompress(block) if codec else block
        decoder = new_decoder(block)
        for _ in range(count):
            yield reader.read(decoder)
            if decoder.tell() > len(block):
                break
        if decoder.tell() != len(block):
            raise ValueError("a block does not have its number of records")


@lru_cache(maxsize=64)
def _reader(avro_schema: str, fields: StructType) -> Reader:
    """A reader of these fields in files of this schema. Most files of a table have the same."""
    visitor: Any = _Readers()  # PyIceberg's own types do not say that a schema stands for its struct
    in_file = AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
    reader: Reader = visit_with_partner(in_file, fields, visitor, _Skipping())
    return reader


class _Readers(ReadSchemaResolver):
    """PyIceberg's readers, but for that of decimals: its own skips another number of bytes than it reads."""

    def visit_decimal(self, decimal_type: DecimalType, partner: IcebergType | None) -> Reader:  # noqa: ARG002 - the visitor gives it
        return FixedReader(decimal_required_bytes(decimal_type.precision))


class _Skipping(SchemaPartnerAccessor):
    """Finds what was asked for inside of a field; nothing, if the field itself was not asked for."""

    def schema_partner(self, partner: IcebergType | None) -> IcebergType | None:
        return partner

    def field_partner(self, partner: IcebergType | None, field_id: int, field_name: str) -> IcebergType | None:
        return None if partner is None else super().field_partner(partner, field_id, field_name)

    def list_element_partner(self, partner_list: IcebergType | None) -> IcebergType | None:
        return None if partner_list is None else super().list_element_partner(partner_list)

    def map_key_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_key_partner(partner_map)

    def map_value_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_value_partner(partner_map)

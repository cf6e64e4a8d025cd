"""Reads a few fields of Iceberg's own Avro files, and skips the rest: that takes a fraction of the time of all of them.

PyIceberg reads manifests and manifest lists whole. Its reader can skip fields, but refuses to skip lists, maps and
structs that are not asked for, which are most of a manifest.
"""

from typing import Any, Self

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType


def read_fields(io: FileIO, uri: str, fields: Schema) -> list[Record]:
    """The records of an Avro file with these fields alone, which are found by their ids.

    Raises `OSError`, of which `FileNotFoundError` is one, if the file cannot be read.
    """
    with _Fields(io.new_input(uri), fields) as records:
        return list(records)


class _Fields(AvroFile[Record]):
    def __enter__(self) -> Self:
        with self.input_file.open() as source:
            self.decoder = new_decoder(source.read())
        self.header = self._read_header()
        self.schema = self.header.get_schema()
        visitor: Any = ReadSchemaResolver()  # PyIceberg's own types do not say that a schema stands for its struct
        self.reader = visit_with_partner(self.schema, self.read_schema, visitor, _Skipping())
        return self


class _Skipping(SchemaPartnerAccessor):
    """Finds what was asked for inside of a field; nothing, if the field itself was not asked for."""

    def field_partner(self, partner: IcebergType | None, field_id: int, field_name: str) -> IcebergType | None:
        return None if partner is None else super().field_partner(partner, field_id, field_name)

    def list_element_partner(self, partner_list: IcebergType | None) -> IcebergType | None:
        return None if partner_list is None else super().list_element_partner(partner_list)

    def map_key_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_key_partner(partner_map)

    def map_value_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_value_partner(partner_map)

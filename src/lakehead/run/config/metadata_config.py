"""The configuration of metadata: what is kept of the sources' catalogues, and what is done when they change."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt

from lakehead.run.config.base import ConfigModel, NonEmptyText

MAX_DIGITS = 38
"""The most digits of a decimal."""

Digits = Annotated[StrictInt, Field(ge=0, le=MAX_DIGITS)]
Hours = Annotated[StrictInt, Field(ge=1)]
AnyAction = Literal["evolve", "freeze", "ignore", "quarantine"]


class GuardrailsConfig(ConfigModel):
    """Limits of decimal columns. A table with a column beyond them is not read."""

    max_precision: Annotated[StrictInt, Field(ge=1, le=MAX_DIGITS)] | None = Field(
        None, description="The maximum precision of a decimal. Default: 38."
    )
    max_scale: Digits | None = Field(None, description="The maximum scale of a decimal. Default: 38.")


class SchemaPolicyConfig(ConfigModel):
    """How changed columns of a source are handled (schema drift). For each kind of change: evolve, the table follows
    without losing anything; freeze, the table fails and nothing is changed; ignore, the table stays as it is;
    quarantine, the table is set aside: skipped with the reason, while the run goes on."""

    require_snapshot: StrictBool | None = Field(
        None,
        description="Whether to refuse a table without a metadata snapshot. Needs metadata.enabled. Default: false.",
    )
    allow_missing_columns: StrictBool | None = Field(
        None,
        description="Whether a column that the source no longer has is filled with NULL: the same as dropped: evolve. "
        "Default: false.",
    )
    allow_new_columns: StrictBool | None = Field(
        None,
        description="Whether a new column is added to the table; false is the same as new: freeze. Default: true.",
    )
    new: AnyAction | None = Field(
        None, description="A column that the table does not have. ignore: it is not read. Default: evolve, it is added."
    )
    dropped: AnyAction | None = Field(
        None,
        description="A column that the source no longer has. evolve or ignore: it stays, with NULL in new rows. "
        "Default: freeze, unless allow_missing_columns is true.",
    )
    renamed: Literal["evolve", "freeze", "quarantine"] | None = Field(
        None,
        description="A column with another name, known for PostgreSQL. Needs metadata.enabled; without it, it is a new "
        "and a dropped column. evolve: the new name is added, and the old one stays, with NULL in new rows. Default: "
        "freeze.",
    )
    widened: AnyAction | None = Field(
        None,
        description="A type that holds all values of the former, and more: bigint for int, double for float, a decimal "
        "with more digits of the same scale. ignore: the column stays, and a value that does not fit stops the table. "
        "Default: evolve, the column is widened.",
    )
    narrowed: AnyAction | None = Field(
        None,
        description="A type whose values the former holds. Needs metadata.enabled. evolve or ignore: the column stays "
        "wide. Default: evolve.",
    )
    changed: Literal["freeze", "quarantine"] | None = Field(
        None, description="A type that is neither wider nor narrower, such as text for a number. Default: freeze."
    )
    reordered: AnyAction | None = Field(
        None,
        description="Columns in another order. Needs metadata.enabled. evolve or ignore: nothing changes, as values go "
        "by name. Default: evolve.",
    )
    nullability: AnyAction | None = Field(
        None,
        description="NOT NULL was added or removed. Needs metadata.enabled. evolve or ignore: nothing changes, as the "
        "table's columns may be NULL. Default: evolve.",
    )
    key: AnyAction | None = Field(
        None,
        description="The source's primary key has other columns. Needs metadata.enabled. evolve or ignore: rows are "
        "merged by primary_keys as before. Default: freeze for tables that are merged, else evolve.",
    )


class MetadataConfig(ConfigModel):
    """Snapshots of the sources' catalogues, and how changes of columns are handled."""

    enabled: StrictBool = Field(
        default=False,
        description="Whether the sources' catalogues are snapshotted before tables run, and what tables were loaded as "
        "is remembered. Some changes can only be told then: see schema_policy.",
    )
    cache_path: NonEmptyText = Field("metadata", description="The folder of the metadata cache.")
    ttl_hours: Hours = Field(24, description="Hours after which metadata is collected again.")
    guardrails: GuardrailsConfig = Field(
        GuardrailsConfig(), description="Limits beyond which a table is refused; a table may have its own."
    )
    schema_policy: SchemaPolicyConfig = Field(
        SchemaPolicyConfig(), description="How schema drift is handled; a table may have its own."
    )

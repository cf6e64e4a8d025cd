"""A configuration with its secrets looked up: the settings of everything it names. Opens and starts nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from lakehead.errors import Misconfigured
from lakehead.extract.protection_rules import Hashed, LeftOut, Masked, Protection
from lakehead.run.config.base import SecretReference
from lakehead.run.config.connections import FileSinkConfig, SourceConfig, TlsConfig
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.config.table_config import ProtectedColumnConfig, TableConfig
from lakehead.run.environment import catalog_properties, is_reference, spark_settings, state_password
from lakehead.source.dialects import DIALECTS
from lakehead.source.source_settings import SourceSettings
from lakehead.source.tls import Tls
from lakehead.spark.conf import AT_LAUNCH
from lakehead.spark.coordinates import driver
from lakehead.spark.settings import Properties, SparkSettings, catalog_prefix, embedded_catalog


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration and the environment in which its secrets are looked up. Its repr shows no secret."""

    config: PipelineConfig
    environment: Mapping[str, str] = field(repr=False)

    def check(self) -> None:
        """Look up every secret and create the folder of an embedded catalog, before anything is started.

        Raises `Misconfigured` for a missing secret or an invalid URL."""
        for source in self.config.sources.values():
            self.source_settings(source)
        for table in self.config.tables:
            self.protections(table)
        _ = self.spark_settings, self.state_password
        if any(not isinstance(sink, FileSinkConfig) and not sink.properties for sink in self.config.sinks.values()):
            self.config.spark.lakehouse.expanduser().mkdir(parents=True, exist_ok=True)

    @cached_property
    def catalogs(self) -> Mapping[str, Properties]:
        """The properties of every Iceberg catalog, by its name in SQL."""
        lakehouse = self.config.spark.lakehouse
        return {
            sink.catalog: catalog_properties(self._resolved(sink.properties), self.environment)
            if sink.properties
            else embedded_catalog(lakehouse)
            for sink in self.config.sinks.values()
            if not isinstance(sink, FileSinkConfig)
        }

    @cached_property
    def spark_settings(self) -> SparkSettings:
        """The settings of the Spark session."""
        spark = self.config.spark
        return replace(
            spark_settings(self.environment),
            master=spark.master,
            app_name=spark.app_name,
            catalogs=self.catalogs,
            jars=(*sorted(self._drivers()), *spark.jars),
            driver_memory=spark.driver_memory,
            python=spark.python,
            ui=spark.ui,
            conf=self._resolved(spark.conf),
            secret_keys=frozenset(self._secret_keys()),
        )

    def source_settings(self, source: SourceConfig) -> SourceSettings:
        """Return the connection settings of a source, with its password."""
        password = source.password.resolve(self.environment) if source.password else None
        settings = DIALECTS.named(source.dialect).parse_url(source.dialect, source.url, source.user, password)
        given = self._resolved(source.properties)
        secret = {key for key, value in source.properties.items() if isinstance(value, SecretReference)}
        return replace(
            settings,
            driver=source.driver,
            tls=self._tls(source.tls) if source.tls else None,
            options=(*settings.options, *((key, value) for key, value in given.items() if key not in secret)),
            secret_options=tuple((key, given[key]) for key in sorted(secret)),
        )

    def protections(self, table: TableConfig) -> dict[str, Protection]:
        """Return which columns of a table are left out, masked or hashed, with the secrets of hashes.

        Raises `Misconfigured` for a secret that is missing or empty."""
        return {name: self._protection(name, column) for name, column in table.columns.items()}

    def _protection(self, name: str, column: ProtectedColumnConfig) -> Protection:
        if column.leave_out:
            return LeftOut()
        if column.secret is None:
            return Masked(column.mask or "")
        secret = column.secret.resolve(self.environment)
        if not secret:
            raise Misconfigured(f"The secret for the hashes of column {name!r} is empty. Set one.")
        return Hashed(secret)

    @cached_property
    def state_password(self) -> str | None:
        """The password of the state database; None if there is none."""
        secret = self.config.runtime.state.password
        return secret.resolve(self.environment) if secret else state_password(self.environment)

    def _drivers(self) -> set[str]:
        """Return the Maven coordinates of the JDBC drivers that tables need, where they are known."""
        used = [(table.reader, self.config.source_of(table)) for table in self.config.tables]
        read = [source for reader, source in used if reader == "jdbc" or (source.tls and source.tls.certificate)]
        read += [each for each in self.config.sources.values() if DIALECTS.named(each.dialect).read is None]
        found = (DIALECTS.named(source.dialect).jdbc.jar or driver(source.url) for source in read)
        return {coordinate for coordinate in found if coordinate}

    def _tls(self, given: TlsConfig) -> Tls:
        passwords = {"key_password": given.key_password, "key_store_password": given.key_store_password}
        return Tls(
            ca=given.ca,
            verify=given.verify,
            certificate=given.certificate,
            key=given.key,
            key_store=given.key_store,
            **{name: secret.resolve(self.environment) if secret else None for name, secret in passwords.items()},
        )

    def _secret_keys(self) -> Iterator[str]:
        """Yield the names of Spark settings that hold secrets.

        Raises `Misconfigured` for one that would appear on the JVM's command line."""
        for key, value in self.config.spark.conf.items():
            if isinstance(value, SecretReference):
                if key in AT_LAUNCH:
                    raise Misconfigured(
                        f"The Spark setting {key} is passed on a command line that every user of the machine can read. "
                        "Give it as plain text without a secret."
                    )
                yield key
        for sink in self.config.sinks.values():
            if not isinstance(sink, FileSinkConfig):
                for key, value in sink.properties.items():
                    if isinstance(value, SecretReference) or is_reference(value):
                        yield f"{catalog_prefix(sink.catalog)}.{key}"

    def _resolved(self, properties: Mapping[str, str | SecretReference]) -> dict[str, str]:
        return {
            key: value.resolve(self.environment) if isinstance(value, SecretReference) else value
            for key, value in properties.items()
        }

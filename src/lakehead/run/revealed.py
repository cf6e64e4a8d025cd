"""A configuration with its secrets: settings of everything that it names. Nothing is opened or started by it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from lakehead.errors import Misconfigured
from lakehead.run.config.config import Config
from lakehead.run.config.connections import FileSink
from lakehead.run.config.connections import Source as SourceConfig
from lakehead.run.config.connections import Tls as TlsConfig
from lakehead.run.config.parts import Secret
from lakehead.run.environment import catalog_properties, is_reference, spark_settings, state_password
from lakehead.source.settings import SourceSettings
from lakehead.source.tls import Tls
from lakehead.spark.conf import AT_LAUNCH
from lakehead.spark.coordinates import driver
from lakehead.spark.settings import Properties, SparkSettings, catalog_prefix, embedded_catalog

_DRIVEN_BY = {"postgresql": "jdbc:postgresql:", "mysql": "jdbc:mariadb:", "sqlite": "jdbc:sqlite:"}
"""By which JDBC URLs tables are read on demand; MariaDB's driver speaks to MySQL too."""


@dataclass(frozen=True)
class Revealed:
    """A configuration and the environment that its secrets stand in. Its repr holds no secret."""

    config: Config
    environment: Mapping[str, str] = field(repr=False)

    def check(self) -> None:
        """Raise `Misconfigured` for a secret that is not where it should be and for what cannot be opened, before
        anything is started; make the folder of an embedded catalog."""
        for source in self.config.sources.values():
            self.source_settings(source)
        _ = self.spark_settings, self.state_password
        if any(not isinstance(sink, FileSink) and not sink.properties for sink in self.config.sinks.values()):
            self.config.spark.lakehouse.expanduser().mkdir(parents=True, exist_ok=True)

    @cached_property
    def catalogs(self) -> Mapping[str, Properties]:
        """Every Iceberg catalog of the configuration, by its name in SQL."""
        lakehouse = self.config.spark.lakehouse
        return {
            sink.catalog: catalog_properties(self._revealed(sink.properties), self.environment)
            if sink.properties
            else embedded_catalog(lakehouse)
            for sink in self.config.sinks.values()
            if not isinstance(sink, FileSink)
        }

    @cached_property
    def spark_settings(self) -> SparkSettings:
        """How Spark is started."""
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
            conf=self._revealed(spark.conf),
            secret_keys=frozenset(self._secret_keys()),
        )

    def source_settings(self, source: SourceConfig) -> SourceSettings:
        """How a source is reached."""
        password = source.password.reveal(self.environment) if source.password else None
        settings = SourceSettings.parse(source.url, user=source.user, password=password)
        given = self._revealed(source.properties)
        secret = {key for key, value in source.properties.items() if isinstance(value, Secret)}
        return replace(
            settings,
            tls=self._tls(source.tls) if source.tls else None,
            options=(*settings.options, *((key, value) for key, value in given.items() if key not in secret)),
            secret_options=tuple((key, given[key]) for key in sorted(secret)),
        )

    @cached_property
    def state_password(self) -> str | None:
        """The password of the state's user."""
        secret = self.config.runtime.state.password
        return secret.reveal(self.environment) if secret else state_password(self.environment)

    def _drivers(self) -> set[str]:
        """The JDBC drivers that tables are read with, as far as we know them."""
        used = [(table.reader, self.config.source_of(table)) for table in self.config.tables]
        read = [source for reader, source in used if reader == "jdbc" or (source.tls and source.tls.certificate)]
        read += [source for source in self.config.sources.values() if source.dialect == "jdbc"]
        found = (driver(_DRIVEN_BY.get(source.dialect, source.url)) for source in read)
        return {coordinate for coordinate in found if coordinate}

    def _tls(self, given: TlsConfig) -> Tls:
        passwords = {"key_password": given.key_password, "key_store_password": given.key_store_password}
        return Tls(
            ca=given.ca,
            verify=given.verify,
            certificate=given.certificate,
            key=given.key,
            key_store=given.key_store,
            **{name: secret.reveal(self.environment) if secret else None for name, secret in passwords.items()},
        )

    def _secret_keys(self) -> Iterator[str]:
        """What Spark's settings are called that were given by reference. Raises `Misconfigured` for one that would be
        on a command line."""
        for key, value in self.config.spark.conf.items():
            if isinstance(value, Secret):
                if key in AT_LAUNCH:
                    raise Misconfigured(
                        f"The Spark setting {key} stands on a command line, which everybody on the machine can read. "
                        "Write it in the open, without a secret in it."
                    )
                yield key
        for sink in self.config.sinks.values():
            if not isinstance(sink, FileSink):
                for key, value in sink.properties.items():
                    if isinstance(value, Secret) or is_reference(value):
                        yield f"{catalog_prefix(sink.catalog)}.{key}"

    def _revealed(self, properties: Mapping[str, str | Secret]) -> dict[str, str]:
        return {
            key: value.reveal(self.environment) if isinstance(value, Secret) else value
            for key, value in properties.items()
        }

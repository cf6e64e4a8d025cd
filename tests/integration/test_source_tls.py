"""A MySQL source with TLS is read by every driver from the right server alone, and by none without TLS."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

import connectorx
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakehead.errors import Misconfigured
from lakehead.source.dialects import parse_source_url
from lakehead.source.jdbc_reader import frame
from lakehead.source.mysql_reader import connectorx_url
from lakehead.source.mysql_source import MySQLSource
from lakehead.source.mysql_types import column_of
from lakehead.source.port import Overrides, Query, ReadPart, TableName
from lakehead.source.source_settings import SourceSettings
from lakehead.source.tls import Tls
from tests.pipeline import Pipeline
from tests.servers.certificates import PASSWORD, Authority, key_store
from tests.servers.mariadb import MariaDB
from tests.support.source_support import rows_of

pytest_plugins = ["tests.support.state_fixtures", "tests.integration.pipeline_fixtures"]
pytestmark = [
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]
CIPHER = "SELECT variable_value AS cipher FROM information_schema.session_status WHERE variable_name = 'Ssl_cipher'"


@dataclass(frozen=True)
class Secured:
    """A server whose certificate is for 127.0.0.1 alone, and a view of how each session of it is encrypted."""

    server: MariaDB
    database: str
    right: Authority
    wrong: Authority

    def settings(self, user: str = "needs_tls", host: str = "127.0.0.1", **tls: str | None) -> SourceSettings:
        url = f"mysql://{user}@{host}:{self.server.port}/{self.database}"
        given = Tls(**{"ca": str(self.right.ca), **tls})  # type: ignore[arg-type] # `verify` has two words
        return replace(parse_source_url(url, password="pw"), tls=given)

    def client(self) -> dict[str, str]:
        certificate, key = self.right.sign("client", "DNS:client.example", password=PASSWORD)
        store = key_store(certificate, key, PASSWORD)
        return {
            "certificate": str(certificate),
            "key": str(key),
            "key_password": PASSWORD,
            "key_store": str(store),
            "key_store_password": PASSWORD,
        }


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    folder = Path(mkdtemp(prefix="lakehead-tls-"))
    folder.chmod(0o755)
    right, wrong = (Authority.make(folder, name) for name in ("right", "wrong"))
    certificate, key = right.sign("server", "IP:127.0.0.1")
    server = MariaDB(f"--ssl-ca={right.ca}", f"--ssl-cert={certificate}", f"--ssl-key={key}")
    try:
        server.start()
        database = server.database().rpartition("/")[2]
        with server.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE SQL SECURITY INVOKER VIEW encrypted AS {CIPHER}")
            for user, needs in (("needs_tls", "SSL"), ("needs_us", "X509")):
                cursor.execute(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'pw' REQUIRE {needs}")
                cursor.execute(f"GRANT SELECT ON {database}.* TO {user}@'127.0.0.1'")
        yield Secured(server, database, right, wrong)
    finally:
        server.stop()
        shutil.rmtree(folder)


def part_of(settings: SourceSettings) -> ReadPart:
    """What a task would read, without asking the server for it."""
    column = column_of("cipher", "varchar(2048)", "varchar", nullable=True, overrides=Overrides())
    return ReadPart(settings=settings, table="encrypted", columns=(column,), relation="encrypted", where="")


Ciphers = Callable[[SourceSettings], list[str]]
READERS = ("pymysql", "connectorx", "jdbc")
UNTRUSTED = ("another authority", "another name", "no TLS")


def by_pymysql(settings: SourceSettings) -> list[str]:
    source = MySQLSource(settings)
    try:
        return [str(cipher) for (cipher,) in source.rows(CIPHER)]
    finally:
        source.close()


def by_connectorx(settings: SourceSettings) -> list[str]:
    found = connectorx.read_sql(connectorx_url(settings), CIPHER, return_type="arrow")
    return [str(cipher) for cipher in found.column(0).to_pylist()]


@pytest.fixture
def ciphers(spark: SparkSession) -> Mapping[str, Ciphers]:
    """What the sessions of each driver are encrypted with, each driver by itself."""
    return {
        "pymysql": by_pymysql,
        "connectorx": by_connectorx,
        "jdbc": lambda settings: [str(row[0]) for row in frame(spark, [part_of(settings)]).collect()],
    }


@pytest.fixture(scope="module")
def untrusted(secured: Secured, mariadb: MariaDB) -> Mapping[str, SourceSettings]:
    """Servers that must be refused."""
    plain = parse_source_url(mariadb.database())
    return {
        "another authority": secured.settings(ca=str(secured.wrong.ca)),
        "another name": secured.settings(host="localhost"),
        "no TLS": replace(plain, tls=Tls(ca=str(secured.right.ca), verify="ca")),
    }


@pytest.fixture(scope="module")
def tried_by_connectorx(untrusted: Mapping[str, SourceSettings]) -> Iterator[Mapping[str, "Future[list[str]]"]]:
    """All of them at once: it goes on trying for half a minute, whatever is wrong."""
    with ThreadPoolExecutor(len(untrusted)) as threads:
        yield {case: threads.submit(by_connectorx, settings) for case, settings in untrusted.items()}


@pytest.mark.parametrize("reader", READERS)
def test_rows_come_encrypted_from_a_server_that_is_who_it_should_be(
    secured: Secured, ciphers: Mapping[str, Ciphers], reader: str
) -> None:
    [cipher] = ciphers[reader](secured.settings())

    assert cipher.startswith(("TLS", "ECDHE"))


@pytest.mark.parametrize("reader", READERS)
def test_another_name_does_not_matter_where_only_the_authority_does(
    secured: Secured, ciphers: Mapping[str, Ciphers], reader: str
) -> None:
    assert ciphers[reader](secured.settings(host="localhost", verify="ca"))[0]


@pytest.mark.parametrize("reader", READERS)
def test_several_authorities_may_stand_in_one_file(
    secured: Secured, ciphers: Mapping[str, Ciphers], reader: str, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_text(secured.wrong.ca.read_text() + secured.right.ca.read_text())

    assert ciphers[reader](secured.settings(ca=str(both)))[0]


@pytest.mark.parametrize("case", UNTRUSTED)
def test_an_untrusted_server_is_refused_in_one_sentence(untrusted: Mapping[str, SourceSettings], case: str) -> None:
    with pytest.raises(Misconfigured, match=r"is not trusted \(.*\)\. Check that it has TLS"):
        by_pymysql(untrusted[case])


@pytest.mark.parametrize("case", UNTRUSTED)
def test_an_untrusted_server_is_refused_by_jdbc_too(
    untrusted: Mapping[str, SourceSettings], ciphers: Mapping[str, Ciphers], case: str
) -> None:
    with pytest.raises(Py4JJavaError, match=r"Self signed certificates|hostname verification failed|ssl not enabled"):
        ciphers["jdbc"](untrusted[case])


# --- as a source


def test_a_source_with_tls_is_read_in_parts(secured: Secured) -> None:
    source = MySQLSource(secured.settings())
    try:
        [part] = source.parts(Query(table=source.describe_table(TableName("encrypted"))), 1)

        assert rows_of(part)["cipher"].to_pylist()[0]
    finally:
        source.close()


def test_a_certificate_of_our_own_is_shown_by_jdbc_which_then_reads_the_rows(
    secured: Secured, spark: SparkSession
) -> None:
    settings = secured.settings("needs_us", **secured.client())
    source = MySQLSource(settings)
    try:
        parts = source.parts(Query(table=source.describe_table(TableName("encrypted"))), 1)

        assert not source.capabilities.arrow
        assert frame(spark, parts).collect()[0][0]
        with pytest.raises(Misconfigured, match="can only be read by JDBC"):
            rows_of(parts[0])
    finally:
        source.close()
    with pytest.raises(Misconfigured, match="refused user 'needs_us'"):
        MySQLSource(secured.settings("needs_us"))


def test_a_configuration_with_tls_is_loaded_by_every_reader(
    secured: Secured, spark: SparkSession, lakehouse: Path, tmp_path: Path
) -> None:
    passwords = {"SOURCE": "pw", "STORE": PASSWORD}
    ours = secured.client()
    certificate = {name: ours[name] for name in ("certificate", "key", "key_store")}
    kept = {name: {"env": "STORE"} for name in ("key_password", "key_store_password")}
    needs = {
        "needs_tls": ({"ca": str(secured.right.ca)}, ("arrow", "jdbc")),
        "needs_us": ({"ca": str(secured.right.ca), **certificate, **kept}, ("auto",)),
    }
    for user, (tls, readers) in needs.items():
        url = f"mysql://{user}@127.0.0.1:{secured.server.port}/{secured.database}"
        source = {"dialect": "mysql", "url": url, "password": {"env": "SOURCE"}, "tls": tls}
        pipeline = Pipeline(tmp_path, lakehouse / "lakehouse", source, passwords)
        names = {reader: f"{user}_{reader}" for reader in readers}
        table = {"table": "encrypted", "mode": "full"}

        ran = pipeline.run(spark, [{**table, "name": name, "reader": reader} for reader, name in names.items()])

        assert ran.errors == {}
        for name in names.values():
            assert pipeline.rows(f"raw.{name}")["cipher"].to_pylist()[0]


@pytest.mark.parametrize("broken", ["ca", "certificate", "key", "key_password"])
def test_a_file_that_cannot_be_used_is_one_sentence_without_a_secret(secured: Secured, broken: str) -> None:
    settings = secured.settings("needs_us", **{**secured.client(), broken: "/nowhere/c4nary"})

    with pytest.raises(Misconfigured, match=r"tls\.(ca|certificate or tls\.key) cannot be used") as refused:
        MySQLSource(settings)
    assert "c4nary" not in f"{refused.value} {settings!r}".replace("certificate='/nowhere/c4nary'", "").replace(
        "ca='/nowhere/c4nary'", ""
    )


@pytest.mark.soak  # it waits for half a minute, and does nothing meanwhile
@pytest.mark.parametrize("case", UNTRUSTED)
def test_an_untrusted_server_is_refused_by_connectorx_too(
    tried_by_connectorx: Mapping[str, "Future[list[str]]"], case: str
) -> None:
    with pytest.raises(RuntimeError, match=r"certificate verify failed|Client requires secure connection"):
        tried_by_connectorx[case].result()

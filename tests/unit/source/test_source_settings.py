"""A source's URL is read whole or refused, and its password is never said."""

import pickle
import subprocess
import sys

import pytest

from lakehead.errors import Misconfigured
from lakehead.source.dialects import DIALECTS, parse_source_url

CANARY = "c4nary/p:w@d#%"


def test_a_url_is_read_with_everything_in_it() -> None:
    settings = parse_source_url("postgresql://me:p%2Fw@db.example:5433/shop%20x?sslmode=require")

    assert (settings.dialect, settings.host, settings.port, settings.database) == (
        "postgresql",
        "db.example",
        5433,
        "shop x",
    )
    assert (settings.user, settings.password, settings.options) == ("me", "p/w", (("sslmode", "require"),))
    assert settings.url() == "postgresql://me:p%2Fw@db.example:5433/shop%20x?sslmode=require"


def test_the_password_is_in_no_repr_and_travels_to_tasks() -> None:
    settings = parse_source_url("mysql://me@db/shop", password=CANARY)

    assert "c4nary" not in repr(settings) + str(settings)
    assert pickle.loads(pickle.dumps(settings)).password == CANARY  # noqa: S301 - our own
    assert settings.redact(f"failed for {CANARY} and {settings.url()}").count("***") == 2


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop",
        "oracle://me@db/shop",
        "postgresql://db/shop",
        "postgresql://me@db",
        "postgresql://me@db:port/shop",
        f"postgresql://me:{CANARY}@db/shop",
        "postgresql://me@db/shop?password=c4nary",
        "postgresql://me@db/shop?sslmode",
        "mysql://me@db/shop?ssl=1",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file?mode=rw",
        "jdbc:oracle:thin:@db?password=c4nary",
        "jdbc:oracle:thin:me/c4nary@db",
        "jdbc:sqlserver://db;password=c4nary",
    ],
)
def test_a_url_that_cannot_be_used_is_a_sentence_without_the_password(url: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        parse_source_url(url)
    assert str(refused.value).endswith(".")
    assert "c4nary" not in str(refused.value) + repr(refused.value.__context__)


@pytest.mark.parametrize("scheme", ["jdbc", "JDBC"])
def test_a_jdbc_url_is_shown_without_its_settings_however_it_is_spelled(scheme: str) -> None:
    settings = parse_source_url(f"{scheme}:sqlserver://db;databaseName=shop;accessKey=c4nary", user="me")

    assert str(settings) == f"{scheme}:sqlserver://db"


@pytest.mark.slow
def test_the_dialects_load_neither_spark_nor_iceberg_nor_arrow_nor_a_driver() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import lakehead.source.dialects, sys; print(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()

    assert not {"pyspark", "pyiceberg", "sqlglot", "psycopg", "pymysql", "connectorx", "sqlalchemy", "pyarrow"} & set(
        loaded
    )


@pytest.mark.slow
def test_a_missing_driver_is_one_sentence() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import sys; sys.modules['psycopg'] = None\n"
                "from lakehead.source.dialects import open_source, parse_source_url\n"
                "from lakehead.errors import Misconfigured\n"
                "try: open_source(parse_source_url('postgresql://me@db/shop'))\n"
                "except Misconfigured as error: print(error)"
            ),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert "Install lakehead[postgresql]" in told


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_an_address_of_ipv6_stands_in_brackets_for_every_reader(kind: str) -> None:
    settings = parse_source_url(f"{kind}://me@[2001:db8::7]:5433/shop")

    assert settings.host == "2001:db8::7"
    assert settings.url() == f"{kind}://me@[2001:db8::7]:5433/shop"
    assert str(settings) == f"{kind}://[2001:db8::7]:5433/shop"
    assert DIALECTS.named(kind).jdbc.url(settings).startswith(f"jdbc:{kind}://[2001:db8::7]:5433/shop?")

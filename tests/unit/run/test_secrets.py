"""No secret of a configuration is where somebody may see it: one canary for each, looked for everywhere."""

import logging
import re
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehead.buffer.config import ObjectStoreConfig
from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import RandomIds
from lakehead.lake.catalog import open_catalog
from lakehead.retry import Backoff
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.environment import store_settings
from lakehead.run.resolved_config import ResolvedConfig
from lakehead.run.table_options import resolve_table
from lakehead.run.wiring import Wiring
from lakehead.source.dialects import DIALECTS
from lakehead.source.port import Column, ReadPart
from lakehead.spark.conf import launch_conf, session_conf
from lakehead.spark.coordinates import DRIVERS
from lakehead.spark.ivy import failure
from lakehead.state.opening import StateSettings, open_state

CANARY = "c4nary"
ENVIRONMENT = {
    name: f"{CANARY}-{name.lower()}"
    for name in (
        "SOURCE_PASSWORD",
        "KEY_PASSWORD",
        "CATALOG_CREDENTIAL",
        "CATALOG_OTHER",
        "SPARK_PHRASE",
        "STATE_PASSWORD",
        "WEBHOOK",
        "LAKEHEAD_STATE_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "UNRELATED",
        "STORE_PASSWORD",
    )
} | {"LAKEHEAD_REPOSITORIES": f"https://me:{CANARY}-repository@jars.example/maven"}


def config(tmp_path: Path, **spark: Any) -> PipelineConfig:
    """A configuration with a secret in every place that can have one."""
    (tmp_path / "secret").write_text(f"{CANARY}-in-a-file\n")
    return PipelineConfig.model_validate(
        {
            "runtime": {
                "raw_root": "raw",
                "state": {"url": "postgresql://me@db/state", "password": {"env": "STATE_PASSWORD"}},
                "ledger": {"url": "s3://bucket/ledger"},
                "notifications": {"webhook": {"env": "WEBHOOK"}},
            },
            "sources": {
                "shop": {
                    "dialect": "postgresql",
                    "url": "postgresql://me@db/shop",
                    "password": {"env": "SOURCE_PASSWORD"},
                    "properties": {"sslpassword": {"env": "KEY_PASSWORD"}, "passfile": {"file": f"{tmp_path}/secret"}},
                },
                "bank": {
                    "dialect": "mysql",
                    "url": "mysql://me@db/bank",
                    "tls": {
                        "ca": "ca.pem",
                        "certificate": "us.pem",
                        "key": f"{CANARY}.key",
                        "key_password": {"env": "KEY_PASSWORD"},
                        "key_store": f"{CANARY}.p12",
                        "key_store_password": {"env": "STORE_PASSWORD"},
                    },
                },
            },
            "sinks": {
                "lake": {
                    "type": "iceberg",
                    "properties": {
                        "type": "rest",
                        "uri": "https://catalog.example",
                        "warehouse": "s3://bucket",
                        "credential": {"env": "CATALOG_CREDENTIAL"},
                        "header.x-other": {"env": "CATALOG_OTHER"},
                    },
                }
            },
            "spark": {"conf": {"spark.hadoop.phrase": {"env": "SPARK_PHRASE"}}, **spark},
            "tables": [
                {"table": "orders", "mode": "full", "source": "shop"},
                {"table": "accounts", "mode": "full", "source": "bank"},
            ],
        }
    )


def test_no_repr_and_no_text_of_a_setting_holds_a_secret(tmp_path: Path) -> None:
    wiring = Wiring(config(tmp_path), ENVIRONMENT)
    source = wiring.source_settings(wiring.config.sources["shop"])
    part = ReadPart(
        settings=source,
        table="orders",
        columns=(Column(name="id", declared="int", arrow=pa.int32()),),
        relation="orders",
        where="",
    )
    store = store_settings("s3://bucket/ledger", ENVIRONMENT)
    state = StateSettings(password=wiring.state_password)
    bank = wiring.source_settings(wiring.config.sources["bank"])
    held = [
        *(bank, bank.tls, replace(part, settings=bank)),
        *(wiring, wiring.config, wiring.spark_settings, source, part, store, state),
        ResolvedConfig(wiring.config, ENVIRONMENT),
        ObjectStoreConfig(url="s3://bucket/queue", settings=store),
        resolve_table("a.b", None, "lake", ["type=rest", f"credential={CANARY}", "s3.secret-access-key=c4nary"]),
    ]

    assert (source.password, state.password) == (f"{CANARY}-source_password", f"{CANARY}-state_password")
    assert dict(source.secret_options) == {"sslpassword": f"{CANARY}-key_password", "passfile": f"{CANARY}-in-a-file"}
    assert store.credentials["secret_access_key"] == f"{CANARY}-aws_secret_access_key"
    for each in held:
        assert CANARY not in f"{each!r} {each}", type(each)


def test_a_drivers_words_are_said_without_any_secret_of_the_source(tmp_path: Path) -> None:
    resolved = ResolvedConfig(config(tmp_path), ENVIRONMENT)
    shop, bank = (resolved.source_settings(source) for source in resolved.config.sources.values())

    assert CANARY not in shop.redact(f"failed: {shop.url()} {dict(shop.secret_options)}")
    assert bank.tls is not None
    assert bank.tls.secrets == (f"{CANARY}-key_password", f"{CANARY}-store_password")
    assert CANARY not in bank.redact(f"failed: {bank.tls.secrets}")


def test_a_jdbc_url_holds_no_secret_of_the_source(tmp_path: Path) -> None:
    resolved = ResolvedConfig(config(tmp_path), ENVIRONMENT)

    for source in resolved.config.sources.values():
        assert CANARY not in DIALECTS.named(source.dialect).jdbc.url(resolved.source_settings(source))


def test_a_source_with_a_certificate_of_our_own_is_read_by_a_driver_that_has_a_word_for_it(tmp_path: Path) -> None:
    jars = ResolvedConfig(config(tmp_path), ENVIRONMENT).spark_settings.jars

    assert DRIVERS["jdbc:mariadb:"] in jars
    assert DRIVERS["jdbc:postgresql:"] not in jars


def test_spark_is_told_to_show_no_secret_and_none_is_on_a_command_line(tmp_path: Path) -> None:
    conf = session_conf(ResolvedConfig(config(tmp_path), ENVIRONMENT).spark_settings, [], None)
    # As Spark keeps them, and as Hadoop has them from Spark.
    named = {**conf, **{key.removeprefix("spark.hadoop."): value for key, value in conf.items()}}
    shown = {key: value for key, value in named.items() if not re.search(conf["spark.redaction.regex"], key)}

    assert {ENVIRONMENT[name] for name in ("CATALOG_CREDENTIAL", "CATALOG_OTHER", "SPARK_PHRASE")} <= {*conf.values()}
    assert CANARY not in str(shown)
    assert CANARY not in str(launch_conf(conf))
    assert {"spark.master", "spark.sql.catalog.lake.uri", "spark.sql.session.timeZone"} <= {*shown}


@pytest.mark.parametrize(
    "key",
    [
        "spark.sql.catalog.lake.credential",
        "spark.sql.catalog.lake.oauth2.token",
        "spark.sql.catalog.lake.jdbc.password",
        "spark.sql.catalog.lake.s3.access-key-id",
        "spark.sql.catalog.lake.s3.secret-access-key",
        "spark.sql.catalog.lake.s3.session-token",
        "spark.sql.catalog.lake.adls.auth.shared-key.account.key",
        "spark.sql.catalog.lake.adls.sas-token.account",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.account.dfs.core.windows.net",
        "spark.ssl.keyPassword",
    ],
)
def test_spark_shows_no_setting_whose_name_speaks_of_a_secret(key: str, tmp_path: Path) -> None:
    given = session_conf(ResolvedConfig(config(tmp_path), ENVIRONMENT).spark_settings, [], None)[
        "spark.redaction.regex"
    ]

    assert re.search(given, key)


def test_what_somebody_else_wants_spark_to_hide_is_hidden_too(tmp_path: Path) -> None:
    resolved = ResolvedConfig(config(tmp_path, conf={"spark.redaction.regex": "(?i)harmless"}), ENVIRONMENT)
    given = session_conf(resolved.spark_settings, [], None)["spark.redaction.regex"]

    assert given.endswith("|(?i)harmless")
    assert given.startswith("(?i)secret|")


def test_a_secret_in_what_the_jvm_is_started_with_is_refused(tmp_path: Path) -> None:
    options = {"spark.driver.extraJavaOptions": {"env": "SPARK_PHRASE"}}

    with pytest.raises(Misconfigured, match=r"extraJavaOptions is passed on a command line") as refused:
        ResolvedConfig(config(tmp_path, conf=options), ENVIRONMENT).check()
    assert CANARY not in str(refused.value)


def test_jars_that_cannot_be_fetched_are_told_without_the_repositorys_password(tmp_path: Path) -> None:
    repositories = ResolvedConfig(config(tmp_path), ENVIRONMENT).spark_settings.repositories

    assert repositories == (ENVIRONMENT["LAKEHEAD_REPOSITORIES"],)
    assert "from https://jars.example/maven." in str(failure("", [], repositories))


def test_looking_a_secret_up_says_nothing_to_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ResolvedConfig(config(tmp_path), ENVIRONMENT).check()

    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "rest", "uri": "http://127.0.0.1:1", "credential": f"id:{CANARY}", "token": CANARY},
        {
            "type": "jdbc",
            "uri": "jdbc:postgresql://127.0.0.1:1/catalog",
            "jdbc.user": "me",
            "jdbc.password": CANARY,
            "s3.secret-access-key": CANARY,
        },
    ],
    ids=["rest", "jdbc"],
)
def test_a_catalog_out_of_reach_is_told_without_its_secrets(properties: dict[str, str]) -> None:
    with pytest.raises(Exception) as away:  # noqa: PT011 - whatever a driver raises
        open_catalog("lake", properties)
    assert CANARY not in "".join(traceback.format_exception(away.value))


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_state_out_of_reach_is_told_without_its_password(kind: str) -> None:
    with pytest.raises(Unavailable) as away:
        open_state(
            f"{kind}://me@127.0.0.1:1/state",
            SystemClock(),
            RandomIds(),
            settings=StateSettings(password=CANARY, backoff=Backoff(attempts=1)),
        )
    assert CANARY not in "".join(traceback.format_exception(away.value))

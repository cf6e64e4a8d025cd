"""docs/gateway.md names settings that a configuration has, with their defaults, and tells limits as they are."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from lakehead.accept.spool_limits import SpoolLimits
from lakehead.gateway.http_protocol import MOST_PIPELINED
from lakehead.gateway.settings import GatewaySettings, IngestSettings, ListenerSettings, ReadinessSettings, TlsSettings
from lakehead.run.config.gateway_config import GatewayConfig
from lakehead.run.gateway_command import open_gateway
from tests.support.gateways import gateway_config

PAGE = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text()
INGEST, LISTENER, READINESS = IngestSettings(), ListenerSettings(), ReadinessSettings()
ALL_SETTINGS = (GatewaySettings, IngestSettings, ListenerSettings, ReadinessSettings, TlsSettings, SpoolLimits)
UNITS = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def keys(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """The keys of a configuration and of what is inside it, each with its default."""
    for name, field in model.model_fields.items():
        yield name, field.default
        if isinstance(field.default, BaseModel):
            yield from keys(type(field.default))


DEFAULTS = dict(keys(GatewayConfig))


def test_settings_that_the_page_names_are_keys_of_the_configuration() -> None:
    settings = {each.name for kind in ALL_SETTINGS for each in fields(kind)}
    units = re.findall(r"`(\w+_(?:seconds|bytes|ms|requests|threads|per_second|in_flight))\b[^`]*`", PAGE)

    named = settings.intersection(re.findall(r"`(\w+)`", PAGE)) | set(units)

    assert sorted(named - set(DEFAULTS)) == []
    assert len(named) > 10


def test_defaults_that_the_page_tells_beside_a_key_are_those_of_the_configuration() -> None:
    told = re.findall(r"`([a-z_]+)` \((\d[\d,]*) ?(s|KiB|MiB)?\)", PAGE)

    assert {name: int(number.replace(",", "")) * UNITS[unit] for name, number, unit in told} == {
        name: DEFAULTS[name] for name, _, _ in told
    }
    assert len(told) > 10


@pytest.mark.parametrize(
    "limit",
    [
        f"closed after {LISTENER.head_seconds:g} s",
        f"431 or 400 above {LISTENER.head_bytes >> 10} KiB",
        f"{MOST_PIPELINED} wait on a connection",
        f"closed after {LISTENER.write_seconds:g} s",
        f"for {LISTENER.linger_seconds:g} s or {LISTENER.linger_bytes >> 20} MiB",
        f"before that the {LISTENER.handshake_seconds:g} s",
        f"Frames above {INGEST.inline_bytes >> 10} KiB are decoded on {INGEST.decode_threads} threads",
    ],
)
def test_limits_that_cannot_be_set_are_told_as_they_are(limit: str) -> None:
    assert limit in PAGE


def test_settings_of_a_stop_and_of_one_agents_requests_reach_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    config = gateway_config(
        tmp_path,
        (tmp_path / "store").as_uri(),
        ingest={"agent_requests": 3},
        unready_seconds=7,
        stop_seconds=8,
        side_effect_seconds=9,
    )

    settings = open_gateway(config).settings()

    assert settings.ingest.agent_requests == 3
    assert (settings.unready_seconds, settings.stop_seconds, settings.side_effect_seconds) == (7, 8, 9)

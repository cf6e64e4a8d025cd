"""Snapshots are kept in files that are whole or told to be damaged, for as long as they may be old."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakehead.errors import Unavailable
from lakehead.metadata.cache import Catalogue, MetadataCacheManager
from lakehead.metadata.repository import MetadataRepository, find_snapshot
from lakehead.metadata.runtime import WantedCatalogue, WantedTable, collect_metadata
from lakehead.metadata.snapshot import ColumnSnapshot, DamagedSnapshot, LoadedTable, TableSnapshot
from lakehead.telemetry.events import Event, MetadataCollected

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORDERS = TableSnapshot(
    schema="public",
    name="Orders",
    identity="16384",
    primary_key=("id",),
    columns=(
        ColumnSnapshot(name="id", declared="bigint", nullable=False, number=1, stored="int64"),
        ColumnSnapshot(name="näme", declared="text", number=3),
    ),
)


@dataclass
class Hands:
    """A clock whose hands a test moves."""

    at: datetime = NOON

    def now_ns(self) -> int:
        return int(self.at.timestamp() * 1e9)

    def monotonic(self) -> float:
        return self.at.timestamp()

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def cache(tmp_path: Path, clock: Hands) -> MetadataCacheManager:
    return MetadataCacheManager(tmp_path / "metadata", timedelta(hours=24), clock)


@dataclass
class Server:
    """A source that counts what it is asked."""

    tables: tuple[TableSnapshot, ...] = (ORDERS,)
    opened: int = 0
    asked: list[tuple[str | None, tuple[str, ...]]] = field(default_factory=list)
    error: Exception | None = None

    def snapshot_tables(self, schema: str | None, names: Sequence[str]) -> tuple[TableSnapshot, ...]:
        if self.error:
            raise self.error
        self.asked.append((schema, tuple(names)))
        return tuple(each for each in self.tables if each.name.lower() in {name.lower() for name in names})

    @contextmanager
    def open(self) -> Iterator["Server"]:
        self.opened += 1
        yield self

    def wanted(self, *tables: str, place: str = "postgresql://host/shop") -> WantedCatalogue:
        named = [WantedTable(name=f"public.{table}", schema="public", table=table) for table in tables]
        return WantedCatalogue(source="shop", place=place, open=self.open, tables=named)


def collect(
    cache: MetadataCacheManager, *wanted: WantedCatalogue
) -> tuple[MetadataRepository, list[MetadataCollected]]:
    told: list[Event] = []
    repository = collect_metadata(wanted, cache, told.append)
    return repository, [each for each in told if isinstance(each, MetadataCollected)]


def catalogue_file(cache: MetadataCacheManager) -> Path:
    [file] = cache.folder.rglob("catalogues/*/*.json")
    return file


def test_what_is_kept_comes_back_as_it_was(cache: MetadataCacheManager) -> None:
    catalogue = Catalogue(place="here", wanted=("orders",), tables=(ORDERS,), collected_at=NOON)
    cache.keep_catalogue("shop", "public", catalogue)
    cache.keep_loaded("public.Orders", LoadedTable(ORDERS, gone=("old",)))

    assert cache.catalogue("shop", "public") == catalogue
    assert cache.loaded("public.Orders") == LoadedTable(ORDERS, gone=("old",))
    assert (cache.catalogue("shop", None), cache.loaded("public.orders")) == (None, None)
    assert not list(cache.folder.rglob(".*")), "nothing half done stays behind"


def test_one_question_a_schema_and_none_while_the_answer_is_fresh(cache: MetadataCacheManager, clock: Hands) -> None:
    server = Server()
    first, [told] = collect(cache, server.wanted("orders", "cities"))
    clock.at += timedelta(hours=23)
    again, [kept] = collect(cache, server.wanted("orders"))

    assert (server.opened, server.asked) == (1, [("public", ("cities", "orders"))])
    assert first.collected == again.collected == {"public.orders": ORDERS}
    assert (told.tables, told.from_cache, told.collected_at) == (1, False, NOON)
    assert (kept.tables, kept.from_cache, kept.collected_at) == (1, True, NOON)


def test_it_is_asked_again_when_the_answer_is_old_or_is_about_something_else(
    cache: MetadataCacheManager, clock: Hands
) -> None:
    server = Server()
    collect(cache, server.wanted("orders"))
    for moved, wanted in [
        (timedelta(hours=24), server.wanted("orders")),
        (timedelta(0), server.wanted("orders", "more")),
        (timedelta(0), server.wanted("orders", place="postgresql://other/shop")),
        (timedelta(hours=-1), server.wanted("orders", place="postgresql://other/shop")),  # the clock went back
    ]:
        clock.at += moved
        before = len(server.asked)
        collect(cache, wanted)
        assert len(server.asked) == before + 1


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 2}', '{"format": 1}', "whole but wrong"])
def test_a_damaged_file_is_collected_again_and_says_so(cache: MetadataCacheManager, damage: str) -> None:
    server = Server()
    collect(cache, server.wanted("orders"))
    file = catalogue_file(cache)
    if damage == "whole but wrong":
        kept = json.loads(file.read_text())
        kept["tables"][0]["columns"][0]["nullable"] = "no"
        damage = json.dumps(kept)
    file.write_text(damage)

    repository, [told] = collect(cache, server.wanted("orders"))

    assert repository.collected == {"public.orders": ORDERS}
    assert told.damaged
    assert cache.catalogue("shop", "public") is not None


def test_a_damaged_load_is_told(cache: MetadataCacheManager) -> None:
    cache.keep_loaded("t", LoadedTable(ORDERS))
    [file] = cache.folder.rglob("loaded/*.json")
    file.write_text("{}")

    with pytest.raises(DamagedSnapshot):
        cache.loaded("t")


def test_a_source_that_fails_stops_no_other(cache: MetadataCacheManager) -> None:
    down, up = Server(error=Unavailable("It cannot be reached.")), Server()

    repository, [failed, done] = collect(cache, down.wanted("orders"), replace(up.wanted("orders"), source="other"))

    assert (failed.error, done.error) == ("It cannot be reached.", None)
    assert repository.collected == {"public.orders": ORDERS}


def test_a_source_without_a_catalogue_is_told(cache: MetadataCacheManager) -> None:
    @contextmanager
    def plain() -> Iterator[object]:
        yield object()

    repository, [told] = collect(cache, replace(Server().wanted("orders"), open=plain))

    assert (repository.collected, told.error) == ({}, None)
    assert told.skipped


def test_a_folder_that_cannot_be_written_is_an_event_and_stops_nothing(tmp_path: Path, clock: Hands) -> None:
    (tmp_path / "file").write_text("")
    cache = MetadataCacheManager(tmp_path / "file" / "metadata", timedelta(hours=1), clock)

    _, [told] = collect(cache, Server().wanted("orders"))

    assert "metadata.cache_path" in str(told.error)


def test_a_table_is_found_in_other_letter_case_if_that_is_unambiguous() -> None:
    other = replace(ORDERS, name="orders")

    assert find_snapshot([ORDERS], "orders", "PUBLIC") == ORDERS
    assert find_snapshot([ORDERS, other], "orders", None) == other
    assert find_snapshot([ORDERS, other], "ORDERS", None) is None
    assert find_snapshot([ORDERS], "orders", "sales") is None

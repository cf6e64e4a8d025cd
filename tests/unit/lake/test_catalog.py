"""A new catalog that many open at once."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from lakehead.lake.catalog import open_catalog
from lakehead.spark.settings import embedded_catalog
from tests.support.effort import effort

AT_ONCE, NEW_CATALOGS = 4, effort(10, soak=20)


@pytest.mark.slow
def test_tables_that_are_loaded_at_once_into_a_new_lakehouse_all_reach_its_catalog(tmp_path: Path) -> None:
    def load(folder: Path, number: int, begin: threading.Barrier) -> None:
        catalog = open_catalog("lake", embedded_catalog(folder))
        begin.wait(timeout=30)
        if number % 2:
            for each in range(10):
                catalog.create_namespace(f"n{number}_{each}")
        else:  # as Spark does with every connection
            with closing(sqlite3.connect(folder / "catalog.sqlite", timeout=30)) as connection:
                assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        catalog.close()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number in range(NEW_CATALOGS):
            folder = tmp_path / str(number)
            folder.mkdir()
            begin = threading.Barrier(AT_ONCE)
            for loaded in [pool.submit(load, folder, each, begin) for each in range(AT_ONCE)]:
                loaded.result()


def test_a_catalog_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="unable to open database file"):
        open_catalog("lake", embedded_catalog(tmp_path / "nowhere"))

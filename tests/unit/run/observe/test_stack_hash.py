"""The same fault has the same hash, wherever and with whatever values it happens; another has another."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from lakehead.errors import Misconfigured, Unavailable
from lakehead.run.observe.stack_hash import stack_hash
from lakehead.source.dialects import parse_source_url
from lakehead.source.driver_errors import translate_errors


def raised(do: Callable[[], object]) -> BaseException:
    try:
        do()
    except Exception as error:  # noqa: BLE001 - whatever a test raises
        return error
    pytest.fail("nothing was raised")


def refuse(value: object, kind: type[Exception] = Misconfigured) -> None:
    if value == "early":
        raise kind(f"{value} is refused at once")
    raise kind(f"{value} is refused")


def through(value: object) -> None:
    refuse(value)


def caused(cause: Callable[[], object]) -> None:
    try:
        cause()
    except Exception as error:
        raise Unavailable("later") from error


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    refuse(levels)


def test_it_is_twelve_hex_digits() -> None:
    found = stack_hash(raised(lambda: refuse(1)))

    assert len(found) == 12
    assert int(found, 16) >= 0


def test_values_messages_and_lines_do_not_count() -> None:
    assert stack_hash(raised(lambda: refuse("early"))) == stack_hash(raised(lambda: refuse(object())))


def test_another_type_another_way_and_another_cause_each_make_another_hash() -> None:
    def bare() -> None:
        raise Unavailable("later")

    faults = (
        lambda: refuse(1),
        lambda: refuse(1, Unavailable),
        lambda: through(1),
        lambda: caused(lambda: refuse(1)),
        lambda: caused(lambda: through(1)),
        bare,
    )

    assert len({stack_hash(raised(fault)) for fault in faults}) == len(faults)


class FromADriver(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__("a driver's words")
        self.sqlstate = sqlstate


def asked(sqlstate: str) -> None:
    with translate_errors(parse_source_url("postgresql://user@127.0.0.1:1/shop")):
        raise FromADriver(sqlstate)


def test_faults_that_one_place_tells_apart_have_hashes_of_their_own() -> None:
    faults = ("28P01", "3D000", "42501", "08006", "XX000")  # password, database, right, connection, anything

    hashes = {stack_hash(raised(lambda state=state: asked(state))) for state in faults}  # type: ignore[misc] # a default

    assert len(hashes) == len(faults)
    assert stack_hash(raised(lambda: asked("28P01"))) == stack_hash(raised(lambda: asked("28000")))


def test_how_often_a_function_called_itself_does_not_count() -> None:
    assert stack_hash(raised(lambda: deep(3))) == stack_hash(raised(lambda: deep(30)))


def test_errors_that_cause_each_other_in_a_circle_come_to_an_end() -> None:
    first, second = ValueError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first

    assert stack_hash(first) != stack_hash(second)


def test_an_error_that_was_never_raised_has_a_hash_by_its_type() -> None:
    assert stack_hash(ValueError("a")) == stack_hash(ValueError("b")) != stack_hash(KeyError("a"))


MODULE = """
    from lakehead.run.observe.stack_hash import stack_hash

    {blank}
    class Loader:
        def load(self, value):
            return [self.slice(each) for each in [value]]

        def slice(self, value):
            {blank}
            try:
                int(value)
            except ValueError as error:
                raise RuntimeError(f"{{value}} at {{id(self)}}") from error

    def told(value):
        try:
            Loader().load(value)
        except RuntimeError as error:
            return stack_hash(error)
"""


@pytest.mark.slow
def test_another_process_another_folder_and_other_lines_make_no_other_hash(tmp_path: Path) -> None:
    found = []
    for folder, blank, value in (("here", "", "x"), ("there/further", "pass", "y")):
        place = tmp_path / folder
        place.mkdir(parents=True)
        (place / "loading.py").write_text(textwrap.dedent(MODULE.format(blank=blank)))
        asked = f"import sys; sys.path.insert(0, {str(place)!r}); import loading; print(loading.told({value!r}))"
        ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60)
        found.append(ran.stdout.strip())

    assert found[0] == found[1]
    assert found[0] == "6b331defade4", "a hash is stored and compared for years: it changes only on purpose"

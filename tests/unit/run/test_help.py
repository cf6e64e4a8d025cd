"""Every command has a help with an example, and refuses wrong input with exit code 2."""

from collections.abc import Callable, Iterator

import pytest
import typer.main
from typer.core import TyperGroup

from lakehead.run.main import app
from tests.unit.run.queue_support import Done

Lakehead = Callable[..., Done]
NAMED = {
    "run",
    "consume",
    "gateway",
    "agent",
    "maintain",
    "progress",
    "history",
    "queue",
    "conflicts",
    "state",
    "audit",
}
NAMED |= {"demo", "doctor", "reconcile", "gc", "dead-letters", "policy"}


def commands(group: TyperGroup, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*above, name))
        else:
            yield (*above, name)


ROOT = typer.main.get_command(app)
assert isinstance(ROOT, TyperGroup)
ALL = sorted(commands(ROOT))


def test_the_commands_of_the_design_are_there() -> None:
    assert {words[0] for words in ALL} >= NAMED


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_a_command_has_a_help_with_an_example_and_exit_code_0(lakehead: Lakehead, words: tuple[str, ...]) -> None:
    done = lakehead(*words, "--help")

    assert (done.code, done.err) == (0, "")
    name = " ".join(words).removesuffix(" run")  # which may be left out: lakehead agent CONFIG
    assert f"Example: lakehead {name}" in " ".join(done.out.split())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_an_unknown_option_is_exit_code_2(lakehead: Lakehead, words: tuple[str, ...]) -> None:
    done = lakehead(*words, "--no-such-option")

    assert (done.code, done.out) == (2, "")
    assert done.err

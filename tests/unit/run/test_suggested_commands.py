"""Every command that a message, a help text or a page of the documentation suggests is one that the command takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from lakehead.lake.ports import CONFIG_OPTION, HistoryBroken
from lakehead.run.error_messages import error_message
from lakehead.run.main import app

ROOT = Path(__file__).parents[3]
VALUE = "a.value"
"""What stands for something that a message puts in."""

_COMMAND = re.compile(r"lakehead (?:[a-z][a-z-]*)(?: +[^\s`;,|]+)*")


def texts(file: Path) -> Iterator[str]:
    """The lines of a module's texts, of docstrings only their examples. What a text puts in is a value."""
    source = file.read_text()
    if "lakehead " not in source:
        return
    nodes = list(ast.walk(ast.parse(source)))
    inner = {id(each) for node in nodes if isinstance(node, ast.JoinedStr) for each in ast.walk(node)}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield from "".join(map(text_of, node.values)).splitlines()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            for line in node.value.splitlines():
                if id(node) not in docstrings or "Example: " in line:
                    yield line


def text_of(part: ast.expr) -> str:
    """A part of an f-string, with something for what is put in."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    named = part.value if isinstance(part, ast.FormattedValue) else None
    return CONFIG_OPTION if isinstance(named, ast.Name) and named.id == "CONFIG_OPTION" else VALUE


@cache
def names() -> frozenset[str]:
    """What may follow `lakehead`."""
    return frozenset(get_command(app).commands)  # type: ignore[attr-defined] # it is a group


def suggested_by(text: str) -> Iterator[str]:
    """The commands in a text: to the end of the line or of the sentence."""
    for found in _COMMAND.finditer(text):
        words = found.group().split()
        if words[1] in names():
            yield found.group().rstrip(".:)")


def of_messages() -> list[str]:
    modules = sorted((ROOT / "src" / "lakehead").rglob("*.py"))
    return sorted({command for file in modules for line in texts(file) for command in suggested_by(line)})


def of_documents() -> list[str]:
    found = {
        line.partition(" #")[0].removeprefix("$ ").strip()
        for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        for line in file.read_text().splitlines()
        if line.startswith(("$ lakehead ", "lakehead "))
    }
    return sorted(command for command in found if command.split()[1].strip("`.,") in names())


def parse(command: str) -> None:
    """Let the real command line read it, and do nothing."""
    words = shlex.split(command.partition(" > ")[0].partition(" | ")[0])[1:]
    at: Any = get_command(app)
    context = at.make_context("lakehead", words)
    while hasattr(at, "commands"):
        name, at, rest = at.resolve_command(context, [*getattr(context, "_protected_args", ()), *context.args])
        context = at.make_context(name, rest, parent=context)


@pytest.mark.parametrize("command", of_messages())
def test_a_message_suggests_what_the_command_takes(command: str) -> None:
    parse(command)


@pytest.mark.parametrize("command", of_documents())
def test_the_documentation_shows_what_the_command_takes(command: str) -> None:
    parse(command)


def test_a_command_that_lacks_something_is_noticed() -> None:
    with pytest.raises(Exception, match="Missing parameter: table"):
        parse("lakehead state rebuild")
    with pytest.raises(Exception, match="No such"):
        parse("lakehead state rebuild a.b --nonsense x")


def test_the_configurations_name_is_put_into_what_a_run_suggests() -> None:
    error = HistoryBroken(f"Decide: lakehead state rebuild raw.orders {CONFIG_OPTION}")

    assert error_message(error, Path("my shop.json")).endswith(
        "lakehead state rebuild raw.orders --config 'my shop.json'"
    )

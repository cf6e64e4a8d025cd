"""Globs over keys, matched in time proportional to the text: no pattern and no key can make it slow.

`*` is any text without a slash, `**` any number of whole segments, `?` one character, `[a-z]` and `[!a-z]` one of a
class, `{a,b}` either; none but `**` matches a slash. `[*]` is a star itself. Upper and lower case differ. Nothing is
hidden: `*` also matches a leading dot.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product
from typing import NamedTuple

from lakehead.errors import Misconfigured

MAX_ALTERNATIVES = 64
"""How many patterns the braces of one glob may stand for."""

_PARTS = re.compile(r"\[[!^]?\]?[^\]/]*\]|\{[^{}]*\}|.", re.DOTALL)


class _Step(Enum):
    STAR = auto()  # any text without a slash
    SEGMENTS = auto()  # at the start of a segment that `**/` may take
    SEGMENT = auto()  # inside of such a segment
    REST = auto()  # anything, up to the end


class _One(NamedTuple):
    """One character: of these spans, or of none of them; a slash only if that is allowed."""

    spans: tuple[tuple[str, str], ...]
    negated: bool = False
    slash: bool = False

    def takes(self, character: str) -> bool:
        if character == "/" and not self.slash:
            return False
        return any(low <= character <= high for low, high in self.spans) != self.negated


_SKIPS: dict[object, int] = {_Step.STAR: 1, _Step.REST: 1, _Step.SEGMENTS: 2}
"""How far one gets past a step without a character."""

_SLASH = _One((("/", "/"),), slash=True)
_NOT_SLASH = _One((), negated=True)
_ANY = _One((), negated=True, slash=True)

_Token = _One | _Step


@dataclass(frozen=True, slots=True)
class Glob:
    """A compiled glob. Make it with `compile_glob`."""

    pattern: str
    alternatives: tuple[tuple[_Token, ...], ...]

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return any(len(tokens) in _read(tokens, text) for tokens in self.alternatives)

    def may_match_below(self, beginning: str) -> bool:
        """Return whether some text that begins like this matches."""
        return any(_read(tokens, beginning) for tokens in self.alternatives)

    def matches_all_below(self, beginning: str) -> bool:
        """Return whether every longer text that begins like this matches: True only if the glob ends with `**`."""
        return any(
            tokens[-1:] == (_Step.REST,) and not {len(tokens) - 1, len(tokens) - 2}.isdisjoint(_read(tokens, beginning))
            for tokens in self.alternatives
        )


def compile_glob(pattern: str) -> Glob:
    """Compile a glob. Raises `Misconfigured` if it is empty or malformed."""
    if not pattern:
        raise Misconfigured("A glob is empty. Write * for any name.")
    return Glob(pattern, tuple(tuple(_tokens(alternative, pattern)) for alternative in _alternatives(pattern)))


def _alternatives(pattern: str) -> list[str]:
    choices = []
    total = 1
    for part in _PARTS.findall(pattern):
        if part in ("{", "}"):
            raise Misconfigured(
                f"The glob {pattern!r} has a brace that is not closed, or one in another. Write [{part}] for it."
            )
        choices.append(part[1:-1].split(",") if part.startswith("{") else [part])
        total *= len(choices[-1])
        if total > MAX_ALTERNATIVES:
            raise Misconfigured(
                f"The glob {pattern!r} stands for more than {MAX_ALTERNATIVES} patterns. Write several."
            )
    return ["".join(choice) for choice in product(*choices)]


def _tokens(alternative: str, pattern: str) -> Iterator[_Token]:
    segments = alternative.split("/")
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "**":
            yield from (_ANY, _Step.REST) if last else (_Step.SEGMENTS, _Step.SEGMENT)
            continue
        if "**" in segment:
            raise Misconfigured(
                f"The glob {pattern!r} has ** beside other characters. Write it as a whole segment: a/**/b."
            )
        for part in _PARTS.findall(segment):
            yield _token(part, pattern)
        if not last:
            yield _SLASH


def _token(part: str, pattern: str) -> _Token:
    if part == "*":
        return _Step.STAR
    if part == "?":
        return _NOT_SLASH
    if part == "[":
        raise Misconfigured(f"The glob {pattern!r} has a [ that is not closed. Write [[] for it.")
    if len(part) == 1:
        return _One(((part, part),))
    return _class(part[1:-1], pattern)


def _class(inside: str, pattern: str) -> _One:
    negated = inside[:1] in ("!", "^")
    members = inside[negated:]
    spans: list[tuple[str, str]] = []
    position = 0
    while position < len(members):
        if members[position + 1 : position + 2] == "-" and position + 2 < len(members):
            spans.append((members[position], members[position + 2]))
            position += 3
        else:
            spans.append((members[position], members[position]))
            position += 1
    if not spans or any(low > high for low, high in spans):
        raise Misconfigured(f"The glob {pattern!r} has a class that is empty or runs backwards.")
    return _One(tuple(spans), negated=negated)


def _read(tokens: tuple[_Token, ...], text: str) -> set[int]:
    """Return the positions in the tokens where one can be after the text; none if nothing that begins so matches."""
    positions = _skipped(tokens, {0})
    for character in text:
        positions = _skipped(tokens, {after for at in positions for after in _after(tokens, at, character)})
        if not positions:
            break
    return positions


def _after(tokens: tuple[_Token, ...], at: int, character: str) -> tuple[int, ...]:
    if at == len(tokens):
        return ()
    match tokens[at]:
        case _Step.REST:
            return (at,)
        case _Step.STAR:
            return (at,) if character != "/" else ()
        case _Step.SEGMENTS:
            return (at + 1,) if character != "/" else ()
        case _Step.SEGMENT:
            return (at,) if character != "/" else (at - 1,)
        case _One() as one:
            return (at + 1,) if one.takes(character) else ()


def _skipped(tokens: tuple[_Token, ...], positions: set[int]) -> set[int]:
    """Add the positions that are reached without a character."""
    reached = set(positions)
    waiting = list(positions)
    while waiting:
        at = waiting.pop()
        past = at + _SKIPS.get(tokens[at], 0) if at < len(tokens) else at
        if past not in reached:
            reached.add(past)
            waiting.append(past)
    return reached

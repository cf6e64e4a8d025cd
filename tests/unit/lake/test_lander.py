"""One landing that is held up: what is done again, what is done once, and what is not left behind."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.ids import system_random
from lakehead.lake.landing import (
    BEGINNING,
    Fence,
    Head,
    LandedPart,
    Landing,
    NewWatermark,
    Pointer,
    Snapshot,
    Unit,
    UnitRemainder,
    token_of,
)
from lakehead.lake.ports import AuditFailed, Moved, Staged
from lakehead.lake.protocol import Audit, Lander
from lakehead.retry import Backoff, TimedBackoff
from lakehead.state.model import ObjectProgress

UNIT = Unit("u")
TRIES = 4


class Virtual(SystemClock):
    """Time that passes only where somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ns(self) -> int:
        return int(self.now * 1e9)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Scene:
    """A table, its progress, its ledger and a stager: whatever is published goes as the test says."""

    answers: Iterator[LakeheadError | None]
    """What each commit meets; None is a success."""

    moves: bool = False
    """Whether main has moved whenever a commit failed."""

    outage: Iterator[LakeheadError] = field(default_factory=lambda: iter(()))
    """What looks at the table meet, before they are answered again."""

    uuid = "table"
    main = 1
    published: Staged[str] | None = None
    stagings: int = 0
    discarded: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    audits: int = 0

    async def head(self) -> Head:
        if (error := next(self.outage, None)) is not None:
            raise error
        return Head(self.main, None)

    async def pointer(self, _: str) -> Pointer:
        return Pointer(self.main, None) if self.main else BEGINNING

    async def plan(self, _: str, *, at: int | None, units: Sequence[Unit]) -> list[UnitRemainder]:
        del at
        return [] if self.published else [UnitRemainder(unit) for unit in units]

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[str]:
        self.stagings += 1
        return Staged(
            f"rows {self.stagings}", Landing(token, tuple(remainders), new_watermark=new_watermark), fence.head
        )

    def is_publishable_at(self, staged: Staged[str], at: Head) -> bool:
        return staged.at == at

    async def is_still_stored(self, _: Staged[str]) -> bool:
        raise AssertionError("what is young is not looked for")

    async def discard(self, staged: Staged[str]) -> None:
        self.discarded.append(staged.rows)

    async def publish(self, staged: Staged[str], at: Head) -> Head:
        error = next(self.answers)
        if error is not None:
            self.main += self.moves
            raise error
        self.published = staged
        return at

    def audit(self, _: Staged[str]) -> None:
        self.audits += 1

    def lander(self, audits: Sequence[Audit[str]]) -> Lander[str]:
        every: Any = self  # it is all of them
        return Lander(
            pipeline="pipeline",
            table=every,
            progress=every,
            ledger=every,
            stager=every,
            clock=Virtual(),
            random=system_random(),
            audits=audits,
            backoff=Backoff(attempts=TRIES),
            outage=TimedBackoff(seconds=60),
            waiting=self.waits.append,
        )


def land(scene: Scene, *audits: Audit[str]) -> Landing | None:
    staged = asyncio.run(scene.lander(audits or [scene.audit]).land([UNIT]))
    return staged.landing if staged else None


def failing(error: LakeheadError, times: int) -> Iterator[LakeheadError | None]:
    yield from [error] * times
    yield None


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), Unavailable("out")])
def test_a_commit_that_is_not_answered_is_made_again_with_what_was_staged_and_audited_once(
    error: LakeheadError,
) -> None:
    scene = Scene(failing(error, 3 * TRIES))

    assert land(scene) is not None

    assert (scene.stagings, scene.audits, scene.discarded) == (1, 1, [])
    assert scene.waits == [str(error)]


def test_a_table_that_cannot_be_looked_at_for_a_while_costs_no_try() -> None:
    scene = Scene(failing(Moved("elsewhere"), 0), outage=iter([Unavailable("out")] * 3 * TRIES))

    assert land(scene) is not None

    assert (scene.stagings, scene.waits) == (1, ["out"])


def test_whoever_stays_silent_ends_the_landing_and_nothing_staged_is_left() -> None:
    scene = Scene(failing(OutcomeUnknown("lost."), 10**6))

    with pytest.raises(Unavailable, match=r"tried for 60 s without success. Last error: lost\."):
        land(scene)

    assert (scene.stagings, scene.discarded) == (1, ["rows 1"])


def test_what_is_good_at_one_head_only_is_done_as_often_as_is_said_and_each_time_removed() -> None:
    scene = Scene(failing(Moved("elsewhere"), 10**6), moves=True)

    with pytest.raises(Unavailable, match=f"during each of {TRIES} attempts"):
        land(scene)

    assert (scene.stagings, scene.audits) == (TRIES, TRIES)
    assert scene.discarded == [f"rows {number}" for number in range(1, TRIES + 1)]
    assert len(scene.waits) == TRIES - 1


def test_what_a_process_staged_that_others_landed_meanwhile_is_removed() -> None:
    """It had lost its lease, and whoever landed the same units died before they were settled."""
    scene = Scene(failing(Moved("elsewhere"), 1))
    token = token_of("pipeline", scene.uuid, [UNIT])
    theirs = Snapshot(2, 1, 2, Landing(token, (UnitRemainder(UNIT),)))
    settled = False

    async def publish(*_: object) -> None:
        scene.main = theirs.id
        raise Moved("others were faster")

    async def pointer(_: str) -> Pointer:
        return Pointer(theirs.id, theirs.id) if settled else Pointer(1, None)

    async def history(*_: object) -> list[Snapshot]:
        return [theirs]

    async def record(*_: object) -> None: ...

    async def settle(*_: object, **__: object) -> bool:
        nonlocal settled
        settled = True
        return True

    for method in (publish, pointer, history, record, settle):
        setattr(scene, method.__name__, method)

    assert land(scene) is not None

    assert (scene.stagings, scene.discarded) == (1, ["rows 1"])


def test_what_fails_its_audit_is_removed() -> None:
    scene = Scene(failing(Moved("elsewhere"), 0))

    def refuse(_: Staged[str]) -> None:
        raise AuditFailed("no")

    with pytest.raises(AuditFailed):
        land(scene, refuse)

    assert (scene.published, scene.discarded) == (None, ["rows 1"])


def test_an_error_of_staging_is_not_taken_for_an_outage_of_the_table() -> None:
    scene = Scene(failing(Moved("elsewhere"), 0))

    async def unreachable(*_: object, **__: object) -> Staged[str]:
        raise Unavailable("the source is out")

    scene.stage = unreachable  # type: ignore[method-assign] # as a source would
    with pytest.raises(Unavailable, match="the source is out"):
        land(scene)

    assert scene.waits == []


PART = LandedPart(0, 100, 3, "e")


async def stage_a_part(
    scene: Scene, remainders: Sequence[UnitRemainder], token: str, new_watermark: NewWatermark, fence: Fence
) -> Staged[str]:
    """Stage only the beginning of each unit."""
    scene.stagings += 1
    staged = tuple(replace(each, part=PART) for each in remainders)
    return Staged(f"rows {scene.stagings}", Landing(token, staged, new_watermark=new_watermark), fence.head)


def in_parts(scene: Scene) -> Scene:
    scene.stage = partial(stage_a_part, scene)  # type: ignore[method-assign] # as a stager of large units
    scene.is_publishable_at = lambda *_: True  # type: ignore[method-assign] # as files are
    return scene


def test_a_part_is_staged_once_however_often_others_commit_first() -> None:
    scene = in_parts(Scene(failing(Moved("elsewhere"), 2), moves=True))

    landing = land(scene)

    assert landing is not None
    assert [each.part for each in landing.remainders] == [PART]
    assert (scene.stagings, scene.discarded) == (1, [])


def test_a_part_is_staged_again_if_the_unit_has_landed_further_meanwhile() -> None:
    scene = in_parts(Scene(failing(Moved("elsewhere"), 1), moves=True))
    reached = [None, ObjectProgress(50, 2, "e")]

    async def plan(*_: object, **__: object) -> list[UnitRemainder]:
        return [UnitRemainder(UNIT, landed=reached[scene.main - 1])]

    scene.plan = plan  # type: ignore[method-assign] # as a state that another has settled in
    land(scene)

    assert (scene.stagings, scene.discarded) == (2, ["rows 1"])


def test_a_part_that_another_has_landed_is_not_taken_for_the_whole_unit_nor_the_other_way_round() -> None:
    part = land(in_parts(Scene(failing(Moved("elsewhere"), 0))))
    whole = land(Scene(failing(Moved("elsewhere"), 0)))

    assert part is not None
    assert whole is not None
    assert part.token != whole.token
    assert part.token == token_of("pipeline", Scene.uuid, [Unit("u#0-100")])

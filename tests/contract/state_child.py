"""A process of its own for tests of the state: reads one command per line, does it, answers in one line."""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import event

from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds
from lakehead.state.buffered import BufferedState
from lakehead.state.model import DayState, DayStatus, Planned, SlicePlan, StoredPointer, StoredSlice, Watermark
from lakehead.state.opening import StateSettings, open_state
from lakehead.state.state import State
from tests.support.state_tools import HOUR, NOON, landing, numbers


def main() -> None:
    state: State | None = None
    say("ready")
    for line in sys.stdin:
        command = json.loads(line)
        match command["do"]:
            case "open":
                if state is not None:
                    state.close()
                state = opened(command)
                say("open")
            case "acquire":
                assert state is not None
                until = state.now() + HOUR
                say(
                    sorted(
                        state.shards.acquire(
                            command["table"], command["units"], owner=command["owner"], lease_until=until
                        )
                    )
                )
            case "open shards":
                assert state is not None
                state.shards.open(command["table"], command["units"], token="opener")
                say(len(command["units"]))
            case "save plan":
                assert state is not None
                slices = tuple(StoredSlice(unit=unit, bounds={}) for unit in command["units"])
                kept = state.slices.save(SlicePlan(id=command["who"], table=command["table"], slices=slices))
                say([kept.id, [each.unit for each in kept.slices]])
            case "settle":
                assert state is not None
                say(settle(state, command))
            case "settle spans":
                assert state is not None
                say(settle_spans(state, command))
            case "plan and compare":
                assert state is not None
                say(plan_and_compare(state, command))
            case "settle up to":
                in_a_process_of_its_own(settle_up_to, command)
            case "emit and mark":
                in_a_process_of_its_own(emit_and_mark, command)
            case unknown:
                raise AssertionError(unknown)


def opened(command: dict[str, Any]) -> State:
    settings = StateSettings(isolation=command.get("isolation", "READ COMMITTED"))
    return open_state(command["url"], SystemClock(), RandomIds(), settings=settings)


def settle(state: State, command: dict[str, Any]) -> bool:
    expected = StoredPointer(*command["expected"]) if command["expected"] else None
    new = StoredPointer(*command["new"])
    happened = state.history.event("landed", table=command["table"], run=command["who"])
    numbered = numbers("agent/boot", *command.get("spans", ()))
    what = landing(new, *command["units"], watermark=command["watermark"], events=(happened,), numbered=numbered)
    return state.landings.settle(command["table"], expected, new, [what])


def settle_spans(state: State, command: dict[str, Any]) -> int:
    """Settle one span after the other, each from where the pointer is by then; how often somebody else was first.

    Where a collision is an error (REPEATABLE READ), somebody who never rests may be in the way ten times in a row. Then
    nothing was changed, as the error says, and it is tried again.
    """
    late = 0
    for start, end in command["spans"]:
        while True:
            seen = state.landings.pointer(command["table"])
            new = StoredPointer(seen.snapshot + 1 if seen else 1, None)
            what = landing(new, numbered=numbers("agent/boot", (start, end)))
            try:
                if state.landings.settle(command["table"], seen, new, [what]):
                    break
            except Unavailable:
                continue
            late += 1
    return late


def plan_and_compare(state: State, command: dict[str, Any]) -> list[object]:
    """Plan from wherever the pointer is until it is at the last snapshot; the plans whose numbers were not its own.

    Each snapshot has brought ten numbers more, so the pointer tells what has landed. A plan that the settler keeps out
    ten times in a row is made again, as a span is settled again.
    """
    wrong: list[object] = []
    while True:
        seen = state.landings.pointer(command["table"])
        at = seen.snapshot if seen else None
        try:
            planned = state.landings.plan(
                command["table"], at, [], owner="us", fenced_at=state.now(), streams=["agent/boot"]
            )
        except Unavailable:
            continue
        if isinstance(planned, Planned) and planned.ranges != {"agent/boot": ((0, at * 10),) if at else ()}:
            wrong.append([at, dict(planned.ranges)])
        if at == command["last"]:
            return wrong


def in_a_process_of_its_own(work: Callable[[dict[str, Any]], None], command: dict[str, Any]) -> None:
    """Do the work in a process that stays where the work left it, until it is killed."""
    process = os.fork()
    if process:
        os.waitpid(process, 0)
        return
    work(command)
    say({"process": os.getpid(), "done": True})
    signal.pause()


def settle_up_to(command: dict[str, Any]) -> None:
    """Settle, but stop before the nth word to the database."""
    state = opened(command)
    words = 0

    def count(*_: object) -> None:
        nonlocal words
        words += 1
        if words == command["words"]:
            say({"process": os.getpid(), "done": False})
            signal.pause()

    event.listen(state.database.engine, "before_cursor_execute", count)
    event.listen(state.database.engine, "commit", count)
    settle(state, command)


def emit_and_mark(command: dict[str, Any]) -> None:
    """Tell an event, which waits, and write what decides, which does not."""
    table = command["table"]
    buffered = BufferedState(opened(command), SystemClock(), age=HOUR)
    buffered.emit("waiting", table=table)
    buffered.advance(Watermark(table=table, value=1))
    buffered.save_plan(SlicePlan(id="p", table=table, slices=()))
    buffered.mark_day(DayStatus(table=table, load_date=NOON.date(), phase="raw", state=DayState.DONE))


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()

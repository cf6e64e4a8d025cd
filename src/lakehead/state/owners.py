"""Owner names of leases. They identify one start of one process, so that others on its machine can see if it ended."""

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_HEX_DIGITS = 10
_OWNER = re.compile(
    rf"(?P<id>.+)\.(?P<machine>[0-9a-f]{{{_HEX_DIGITS}}})\.(?P<pid>[0-9a-f]{{1,7}})\.(?P<started>[0-9a-f]{{1,16}})"
)
_LONGEST = 64
"""The longest owner name that the state stores."""

_DEAD_STATES = ("Z", "X")
"""The states of a process that has ended and that its parent has not reaped."""


@dataclass(frozen=True, slots=True)
class Process:
    """One start of a process."""

    machine: str
    """A hash of the host, its boot, and the namespaces of process ids and start times, so that a process of another
    container, or from before a reboot, is never mistaken for one of ours."""

    pid: int
    started: int
    """When it started, in ticks since the boot: a reused process id has another start."""


def owner_named(unique: str, pid: int | None = None) -> str:
    """An owner name for the state's leases: a unique name, and the process, by default the current one.

    On systems without `/proc`, such as macOS, it is the unique name alone, and others cannot see that such an owner has
    ended.
    """
    process = running_process(os.getpid() if pid is None else pid)
    if process is None:
        return unique
    owner = f"{unique}.{process.machine}.{process.pid:x}.{process.started:x}"
    return owner if len(owner) <= _LONGEST else unique


def process_of(owner: str) -> Process | None:
    """The process in an owner name; None if it has none, such as those of older versions."""
    found = _OWNER.fullmatch(owner)
    return Process(found["machine"], int(found["pid"], 16), int(found["started"], 16)) if found else None


def is_on_this_machine(process: Process) -> bool:
    """Whether a process belongs to this boot of this machine and to our own namespaces."""
    return process.machine == _machine()


def is_gone(owner: str) -> bool:
    """Whether an owner is known to have ended. False means that it is alive or that it is unknown."""
    process = process_of(owner)
    if process is None or not is_on_this_machine(process):
        return False
    try:
        os.kill(process.pid, 0)  # not by reading /proc, which may hide other users' processes
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists, and belongs to another user
    stat = _stat(process.pid)
    return stat is not None and (stat[0] in _DEAD_STATES or stat[1] != process.started)


def running_process(pid: int) -> Process | None:
    """The process with this id; None if there is none, or if `/proc` does not provide enough."""
    machine, stat = _machine(), _stat(pid)
    return None if machine is None or stat is None else Process(machine, pid, stat[1])


def _machine() -> str | None:
    boot = _read_or_none(lambda: (PROC / "sys/kernel/random/boot_id").read_text().strip())
    processes = _read_or_none(lambda: str((PROC / "self/ns/pid").readlink()))
    seen_as = _read_or_none(lambda: str((PROC / "self").readlink()))
    if not boot or not processes or seen_as != str(os.getpid()):  # /proc may belong to another namespace
        return None
    # Start times are relative to the time namespace's own zero. Systems without time namespaces have one zero.
    time = _read_or_none(lambda: str((PROC / "self/ns/time").readlink()))
    identity = "\n".join((os.uname().nodename, boot, processes, time or ""))
    return hashlib.sha256(identity.encode()).hexdigest()[:_HEX_DIGITS]


def _stat(pid: int) -> tuple[str, int] | None:
    """The state of a process and the ticks at its start; None if they cannot be read."""
    content = _read_or_none((PROC / f"{pid}/stat").read_text)
    # The command is in parentheses, and may itself contain spaces and parentheses.
    fields = content.rpartition(")")[2].split() if content else []
    return (fields[0], int(fields[19])) if len(fields) > 19 and fields[19].isdecimal() else None


def _read_or_none(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except OSError:
        return None

"""Owners of leases: the name of one start of one process, by which others on its machine can tell that it is gone."""

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
"""How long an owner may be in the state."""

_DEAD_STATES = ("Z", "X")
"""What the system calls a process that has ended and that its parent has not asked about."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine, as its system knows it."""

    machine: str
    """Stands for the host, its boot and the namespaces in which process ids and start times mean something: a process
    of another container, or of before a reboot, is never taken for one of ours."""

    pid: int
    started: int
    """When it started, in ticks since the boot: an id that was used again has another."""


def owner_named(unique: str, pid: int | None = None) -> str:
    """An owner for the state's leases: a unique name, and the process that is meant, by default the one that asks.

    Where the system does not tell enough, as macOS without `/proc`, it is the name alone, and nobody can tell that such
    an owner is gone.
    """
    process = running_process(os.getpid() if pid is None else pid)
    if process is None:
        return unique
    owner = f"{unique}.{process.machine}.{process.pid:x}.{process.started:x}"
    return owner if len(owner) <= _LONGEST else unique


def process_of(owner: str) -> Process | None:
    """The process that an owner names; None for one that names none, as owners of older versions."""
    found = _OWNER.fullmatch(owner)
    return Process(found["machine"], int(found["pid"], 16), int(found["started"], 16)) if found else None


def is_on_this_machine(process: Process) -> bool:
    """Whether a process is, or was, of this boot of this machine and of our own namespaces."""
    return process.machine == _machine()


def is_gone(owner: str) -> bool:
    """Whether an owner is known to have ended. False says nothing: it may live, or nobody here can tell."""
    process = process_of(owner)
    if process is None or not is_on_this_machine(process):
        return False
    try:
        os.kill(process.pid, 0)  # not by looking into /proc, which may hide the processes of others
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is there, and belongs to somebody else
    told = _stat(process.pid)
    return told is not None and (told[0] in _DEAD_STATES or told[1] != process.started)


def running_process(pid: int) -> Process | None:
    """The process of an id; None where there is none, or where the system does not tell enough."""
    machine, told = _machine(), _stat(pid)
    return None if machine is None or told is None else Process(machine, pid, told[1])


def _machine() -> str | None:
    boot = _told(lambda: (PROC / "sys/kernel/random/boot_id").read_text().strip())
    processes = _told(lambda: str((PROC / "self/ns/pid").readlink()))
    seen_as = _told(lambda: str((PROC / "self").readlink()))
    if not boot or not processes or seen_as != str(os.getpid()):  # /proc may be that of another namespace
        return None
    # Start times are counted from the time namespace's own zero. Systems without such namespaces have one zero.
    time = _told(lambda: str((PROC / "self/ns/time").readlink()))
    words = "\n".join((os.uname().nodename, boot, processes, time or ""))
    return hashlib.sha256(words.encode()).hexdigest()[:_HEX_DIGITS]


def _stat(pid: int) -> tuple[str, int] | None:
    """The state of a process and the ticks at its start; None where they are not told."""
    told = _told((PROC / f"{pid}/stat").read_text)
    # Its command stands in parentheses, and may hold spaces and parentheses itself.
    fields = told.rpartition(")")[2].split() if told else []
    return (fields[0], int(fields[19])) if len(fields) > 19 and fields[19].isdecimal() else None


def _told(ask: Callable[[], str]) -> str | None:
    try:
        return ask()
    except OSError:
        return None

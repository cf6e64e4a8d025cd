"""Owners of leases: whoever is known to be gone is told from whoever lives or cannot be known."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from lakehead.ids import RandomIds
from lakehead.state import owners
from lakehead.state.keys import checked_key
from lakehead.state.owners import Process, is_gone, is_on_this_machine, owner_named, process_of

RUN = str(UUID(int=7))


def named(process: Process) -> str:
    return f"{RUN}.{process.machine}.{process.pid:x}.{process.started:x}"


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """Another process, which does nothing."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_owner_names_its_process_and_fits_into_the_state() -> None:
    owner = owner_named(RandomIds().uuid())

    process = process_of(checked_key("owner", owner))
    assert process is not None
    assert process.pid == os.getpid()
    assert is_on_this_machine(process)
    assert not is_gone(owner)


def test_a_process_that_was_killed_is_gone_also_before_its_parent_has_asked(other: "subprocess.Popen[bytes]") -> None:
    owner = owner_named(RUN, other.pid)
    lived = not is_gone(owner)

    os.kill(other.pid, signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays there for its parent
    as_zombie = is_gone(owner)
    other.wait()

    assert lived
    assert as_zombie
    assert is_gone(owner)


def test_a_process_that_has_the_id_of_an_earlier_one_is_not_taken_for_it(other: "subprocess.Popen[bytes]") -> None:
    process = process_of(owner_named(RUN, other.pid))
    assert process is not None

    assert is_gone(named(replace(process, started=process.started - 1)))
    assert not is_gone(named(process))


def test_nothing_is_known_of_another_machine_boot_or_container() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    owner = owner_named(RUN, gone.pid)
    gone.wait()
    process = process_of(owner)
    assert process is not None

    assert is_gone(owner)
    assert not is_gone(named(replace(process, machine="0" * len(process.machine))))


@pytest.mark.parametrize("owner", [RUN, "bench", "a.b.c.d", f"{RUN}.0123456789.fffffffff.1", f"{RUN}.0123456789.1."])
def test_nothing_is_known_of_an_owner_that_names_no_process(owner: str) -> None:
    assert process_of(owner) is None
    assert not is_gone(owner)


def test_without_proc_nothing_is_known_and_the_name_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owner = owner_named(RUN, 1)

    monkeypatch.setattr(owners, "PROC", tmp_path)

    assert owner_named(RUN) == RUN
    assert not is_gone(owner)


def test_a_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch, other: "subprocess.Popen[bytes]") -> None:
    owner = owner_named(RUN, other.pid)

    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", refuse)
        assert not is_gone(owner)

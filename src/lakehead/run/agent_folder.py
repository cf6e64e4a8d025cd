"""What an agent's spool holds while no agent runs, read without changing anything."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakehead.errors import LakeheadError, Misconfigured
from lakehead.wire.agent_spool_records import DAMAGED, ENTRIES, PARKED, SPOOL, AgentSpoolRecord, ParkedNote, number_of
from lakehead.wire.errors import BadFrame, NewerFormat
from lakehead.wire.frame import peek_frame
from lakehead.wire.frame_header import MAX_HEAD_BYTES


@dataclass(frozen=True, slots=True)
class AgentFolder:
    """The folder of a spool."""

    folder: Path

    def status(self) -> dict[str, Any]:
        """Return what is in it, as a running agent would tell. Raises `Misconfigured` if it is none."""
        record = self._record()
        entries, parked = list(self._files(ENTRIES)), list(self._files(PARKED))
        return {
            "agent_id": record.agent_id,
            "spool_id": record.spool_id,
            "authority": record.authority,
            "spool": {
                "entries": len(entries),
                "entry_bytes": sum(each.stat().st_size for each in entries),
                "parked": len(parked),
                "parked_bytes": sum(each.stat().st_size for each in parked),
                "damaged": sum(1 for _ in (self.folder / DAMAGED).glob("*")),
            },
            "parked": self.parked(),
        }

    def parked(self) -> list[dict[str, Any]]:
        """Return the parked batches, as a running agent would list them. Raises `Misconfigured`."""
        self._record()
        return [self._shown(each) for each in self._files(PARKED)]

    def _record(self) -> AgentSpoolRecord:
        try:
            return AgentSpoolRecord.decode((self.folder / SPOOL).read_bytes(), SPOOL)
        except FileNotFoundError:
            raise Misconfigured(
                f"{self.folder} is no spool of an agent: it has no {SPOOL}. Correct agent.spool_folder, or start the "
                "agent, which makes one."
            ) from None

    def _files(self, folder: str) -> Iterator[Path]:
        for path in sorted((self.folder / folder).glob("*")):
            if number_of(f"{folder}/{path.name}") is not None:
                yield path

    def _shown(self, path: Path) -> dict[str, Any]:
        told: dict[str, Any] = {"number": int(path.name), "bytes": path.stat().st_size, "code": "", "reason": ""}
        try:
            with path.open("rb") as file:
                header = peek_frame(file.read(MAX_HEAD_BYTES))
        except (BadFrame, NewerFormat) as error:
            return told | {"kind": "", "boot_id": "", "seq_start": None, "seq_end": None, "reason": str(error)}
        one = header.identity
        told |= {"kind": header.kind.word, "agent_id": one.agent_id, "boot_id": one.boot_id}
        told |= {"seq_start": one.seq_start, "seq_end": one.seq_end}
        note = path.with_name(f"{path.name}.json")
        try:
            why = ParkedNote.decode(note.read_bytes(), f"{PARKED}/{note.name}")
        except (OSError, LakeheadError):
            return told  # what is told of a parked batch may be lost
        return told | {"code": why.code, "reason": why.text}

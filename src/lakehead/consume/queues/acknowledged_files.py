"""Which files of a folder were acknowledged, in bounded memory. Nothing here does I/O."""

from hashlib import blake2b

from lakehead.storage.port import ListedObject


class AcknowledgedFiles:
    """Remembers files while they are listed. A file that has changed is another file."""

    def __init__(self, most: int) -> None:
        """Remember at most so many, some 150 bytes each; of more, the oldest are forgotten."""
        self.has_forgotten = False
        """Whether files were forgotten that are still listed."""
        self._most = most
        self._pass = 0
        self._last_listed: dict[bytes, int] = {}
        """By what identifies a file, the number of the pass that last listed it. The oldest first."""

    def __len__(self) -> int:
        return len(self._last_listed)

    def add(self, file: ListedObject) -> None:
        """Remember a file."""
        self._last_listed[_digest(file)] = self._pass
        if len(self._last_listed) > self._most:
            del self._last_listed[next(iter(self._last_listed))]
            self.has_forgotten = True

    def seen(self, file: ListedObject) -> bool:
        """Note that a file is listed; return whether it was acknowledged."""
        digest = _digest(file)
        if digest not in self._last_listed:
            return False
        self._last_listed[digest] = self._pass
        return True

    def end_pass(self) -> None:
        """Forget what a complete pass did not list."""
        self._last_listed = {digest: seen for digest, seen in self._last_listed.items() if seen >= self._pass}
        self._pass += 1


def _digest(file: ListedObject) -> bytes:
    return blake2b(f"{file.size} {file.modified_ns} {file.key}".encode(), digest_size=16).digest()

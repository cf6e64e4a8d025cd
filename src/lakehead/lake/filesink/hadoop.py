"""File systems as Spark's own JVM knows them: local disk, HDFS, S3 and whatever else Hadoop has a client for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids
from lakehead.lake.filesink.local import create_file, rename_folder
from lakehead.lake.filesink.port import Entry, Outcome

LOCAL = "file"
RENAME_AT_ONCE = frozenset({"hdfs"})
NS_PER_MS = 1_000_000

_ABSENT = ("FileNotFoundException", "NoSuchFileException")
_TAKEN = (
    "FileAlreadyExistsException",
    "RemoteFileChangedException",  # S3's client, when another object came first
)
_NOT_EMPTY = ("PathIsNotEmptyDirectoryException", "DirectoryNotEmptyException")
_OPERATOR_MUST_ACT = ("AccessControlException", "AccessDeniedException", "UnsupportedFileSystemException")
_PUT_IF_ABSENT = "fs.option.create.conditional.overwrite"


class HadoopFiles:
    """The file systems of a Spark session, with its credentials and settings (`spark.hadoop.*`).

    `create` is one step on local disk and on HDFS. On S3 it is one too where the client knows conditional writes (3.4.2
    and later, unless `fs.s3a.create.conditional.enabled` is off) and the server honours them; elsewhere it looks first,
    and of two writers at once the later one's file stays, whole.
    """

    def __init__(self, session: SparkSession, *, ids: Ids, rename_at_once: frozenset[str] = RENAME_AT_ONCE) -> None:
        """`rename_at_once` are the schemes, besides `file`, whose rename of a folder is one step that refuses a taken
        name. Name others only if their file system promises both."""
        context = session.sparkContext
        self._jvm = cast("Any", context._jvm)  # noqa: SLF001 - PySpark has no public way to Hadoop
        self._gateway: Any = context._gateway  # noqa: SLF001 - as above
        self._conf: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001 - as above
        self._ids = ids
        self._rename_at_once = rename_at_once
        # Kept, because Python looks up each word of a Java name again, every time.
        self._path = self._jvm.org.apache.hadoop.fs.Path
        self._systems: dict[tuple[str, str], Any] = {}

    def renames_at_once(self, path: str) -> bool:
        """Whether the file system of this path renames a folder in one step, and refuses a name that is taken."""
        with _looking(path):
            return self._scheme(path) in {LOCAL, *self._rename_at_once}

    def list(self, folder: str) -> Sequence[Entry]:
        """The names in a folder, in no order; none where it is absent."""
        with _looking(folder):
            if self._scheme(folder) == LOCAL and not self._local(folder).exists():
                return []  # as Java says below, where it takes PySpark 30 ms to understand it
            try:
                found = self._system(folder).listStatus(self._path(folder))
            except Py4JJavaError as error:
                if _is(error, _ABSENT):
                    return []
                raise
            return [Entry(each.getPath().getName(), each.isDirectory()) for each in found]

    def exists(self, path: str) -> bool:
        """Whether a file or a folder is there."""
        with _looking(path):
            return bool(self._system(path).exists(self._path(path)))

    def read(self, file: str) -> bytes | None:
        """All of a file, or None where it is absent."""
        with _looking(file):
            try:
                stream = self._system(file).open(self._path(file))
            except Py4JJavaError as error:
                if _is(error, _ABSENT):
                    return None
                raise
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def modified_ns(self, file: str) -> int | None:
        """When a file was written, in nanoseconds since the epoch by the file system's clock; None if absent."""
        with _looking(file):
            try:
                return int(self._system(file).getFileStatus(self._path(file)).getModificationTime()) * NS_PER_MS
            except Py4JJavaError as error:
                if _is(error, _ABSENT):
                    return None
                raise

    def make_folder(self, folder: str) -> None:
        """Make a folder and those above it. One that is there is left as it is."""
        with _changing(folder):
            self._system(folder).mkdirs(self._path(folder))

    def create(self, file: str, body: bytes) -> Outcome:
        """Write a file that does not exist yet. Readers never see a part of it."""
        with _changing(file):
            scheme = self._scheme(file)
            temporary = f".{self._ids.uuid()}.tmp"
            if scheme == LOCAL:
                return create_file(self._local(file), body, temporary=temporary)
            if scheme not in self._rename_at_once:
                return self._write(file, body)  # such stores show an object when it is whole
            written = f"{file.rpartition('/')[0]}/{temporary}"
            outcome = self._write(written, body)
            if outcome is Outcome.DONE and (outcome := self._rename(written, file)) is not Outcome.DONE:
                self.delete(written)
            return outcome

    def rename(self, folder: str, target: str) -> Outcome:
        """Give a folder a name that is free, in one step where `renames_at_once` says so."""
        with _changing(target):
            if self._scheme(folder) == LOCAL:
                return rename_folder(self._local(folder), self._local(target))
            return self._rename(folder, target)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it. What is absent is left absent."""
        with _changing(path):
            self._system(path).delete(self._path(path), True)  # noqa: FBT003 - Java knows no names

    def delete_if_empty(self, folder: str) -> None:
        """Remove a folder unless something is in it."""
        if self.list(folder):
            return
        with _changing(folder):
            try:
                self._system(folder).delete(self._path(folder), False)  # noqa: FBT003 - as above
            except Py4JJavaError as error:
                # A local disk reports it only in its message. If files were added since, the folder stays either way.
                if not _is(error, _NOT_EMPTY) and not self.list(folder):
                    raise

    def _rename(self, source: str, target: str) -> Outcome:
        # FileContext refuses a target that is taken, which FileSystem does not: it would move the source into it.
        none = self._gateway.new_array(getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename"), 0)
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._conf)
        try:
            context.rename(self._path(source), self._path(target), none)
        except Py4JJavaError as error:
            return _refusal(error)
        return Outcome.DONE

    def _write(self, file: str, body: bytes) -> Outcome:
        builder = self._system(file).createFile(self._path(file)).overwrite(False)  # noqa: FBT003 - as above
        try:
            stream = builder.opt(_PUT_IF_ABSENT, "true").build()
            try:
                stream.write(bytearray(body))
            finally:
                stream.close()
        except Py4JJavaError as error:
            return _refusal(error)
        return Outcome.DONE

    def _system(self, path: str) -> Any:
        scheme, place, *_ = urlsplit(path)
        if (scheme, place) not in self._systems:
            self._systems[scheme, place] = self._path(path).getFileSystem(self._conf)
        return self._systems[scheme, place]

    def _scheme(self, path: str) -> str:
        return str(self._system(path).getUri().getScheme())

    def _local(self, path: str) -> Path:
        return Path(self._system(path).makeQualified(self._path(path)).toUri().getPath())


def _is(error: Py4JJavaError, names: tuple[str, ...]) -> bool:
    return str(error.java_exception.getClass().getSimpleName()) in names


def _refusal(error: Py4JJavaError) -> Outcome:
    if _is(error, _TAKEN):
        return Outcome.TAKEN
    if _is(error, _ABSENT):
        return Outcome.ABSENT
    raise error


@contextmanager
def _looking(path: str) -> Iterator[None]:
    with _translated(path, Unavailable, "Nothing was changed. Try again later."):
        yield


@contextmanager
def _changing(path: str) -> Iterator[None]:
    with _translated(path, OutcomeUnknown, "Whether the change was made is unknown. Check before you repeat it."):
        yield


@contextmanager
def _translated(path: str, otherwise: type[LakeheadError], advice: str) -> Iterator[None]:
    """Raise errors of the JVM and of the disk as errors of ours, with a message that says what to do."""
    try:
        yield
    except Py4JJavaError as error:
        said = str(error.java_exception.toString())
        if "ClassNotFoundException" in said:
            raise Misconfigured(
                f"Spark has no client for the file system of {path} ({said}). Add its jar to the Spark settings; for "
                "S3 that is org.apache.hadoop:hadoop-aws in the version of Spark's own Hadoop."
            ) from error
        if _is(error, _OPERATOR_MUST_ACT):
            raise Misconfigured(
                f"The file system denied access to {path} ({said}). Check the path and its permissions."
            ) from error
        raise otherwise(f"The file system failed at {path} ({said}). {advice}") from error
    except PermissionError as error:
        raise Misconfigured(f"{path} cannot be used ({error}). Check its permissions.") from error
    except (OSError, Py4JError) as error:
        raise otherwise(f"The file system failed at {path} ({error}). {advice}") from error

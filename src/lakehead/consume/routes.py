"""Routes: which table an object goes to, by its URI."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lakehead.consume.globs import Glob, compile_glob
from lakehead.consume.uris import normalise_prefix, split_uri
from lakehead.consume.web_urls import InvalidUri
from lakehead.errors import Misconfigured

_SCHEMES = ("s3://", "gs://", "az://", "file:///", "memory://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The objects that go to one table: those with one of the prefixes, included by a glob and excluded by none.

    A glob without a slash is matched with the last segment of the key (`*.json`), one with a slash with the whole key
    (`in/**/*.json`), one with a scheme with the whole URI (`s3://bucket/in/*.json`). Of a file the key is its path
    without the leading slash. Globs are matched with keys as they are, not percent-encoded.
    Making one raises `Misconfigured` for an invalid prefix or glob.
    """

    table: str
    """Where they land, as `namespace.table`."""

    prefixes: tuple[str, ...] = ()
    """Beginnings of URIs, as text; end one with a slash for a folder. Empty: any."""

    include: tuple[str, ...] = ()
    """Globs of which one must match. Empty: any."""

    exclude: tuple[str, ...] = ()
    """Globs of which none may match."""

    format: str | None = None
    """How the objects are decoded; None: by their names."""

    _prefixes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _include: tuple[Glob, ...] = field(init=False, repr=False, compare=False)
    _exclude: tuple[Glob, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_prefixes", tuple(_prefix(prefix) for prefix in self.prefixes))
        object.__setattr__(self, "_include", tuple(_glob(pattern) for pattern in self.include))
        object.__setattr__(self, "_exclude", tuple(_glob(pattern) for pattern in self.exclude))

    def takes(self, uri: str) -> bool:
        """Return whether an object is of this route, by its normalised URI."""
        if self._prefixes and not uri.startswith(self._prefixes):
            return False
        if self._include and not any(glob.matches(_subject(glob, uri)) for glob in self._include):
            return False
        return not any(glob.matches(_subject(glob, uri)) for glob in self._exclude)

    def may_take_below(self, folder: str) -> bool:
        """Return whether some object in a folder, or below it, may be of this route. In doubt it is True."""
        return any(self._globs_may_take_below(beginning) for beginning in _common(folder, self._prefixes))

    def _globs_may_take_below(self, beginning: str) -> bool:
        if self._include and not any(glob.may_match_below(_subject(glob, beginning)) for glob in self._include):
            return False
        return not any(glob.matches_all_below(_subject(glob, beginning)) for glob in self._exclude)


def route_of(uri: str, routes: Iterable[Route]) -> Route | None:
    """Return the first route that takes the object of a normalised URI; None if it is filtered out."""
    return next((route for route in routes if route.takes(uri)), None)


def route_into(target: str, routes: Sequence[Route]) -> Route | None:
    """Return a route that may take what is moved to a target folder, and so would consume it again; None if it is safe.

    It errs on the safe side: a route without prefixes takes any bucket. Raises `Misconfigured` for an invalid target.
    """
    folder = _prefix(target)
    folder = folder if folder.endswith("/") else f"{folder}/"
    return next((route for route in routes if route.may_take_below(folder)), None)


def _prefix(text: str) -> str:
    try:
        return normalise_prefix(text)
    except InvalidUri as error:
        raise Misconfigured(f"A prefix is not valid. {error}") from None


def _glob(pattern: str) -> Glob:
    if "://" in pattern:
        if not pattern.startswith(_SCHEMES):
            raise Misconfigured(
                f"The glob {pattern!r} begins with an unknown scheme. Write one of {', '.join(_SCHEMES)}."
            )
        return compile_glob(pattern)
    if pattern.startswith("/"):
        raise Misconfigured(f"The glob {pattern!r} begins with a slash, which no key does. Write it without.")
    if pattern.endswith("/"):
        raise Misconfigured(f"The glob {pattern!r} ends with a slash. Write {pattern}** for all that is in a folder.")
    return compile_glob(pattern if "/" in pattern or not pattern else f"**/{pattern}")


def _subject(glob: Glob, uri: str) -> str:
    scheme, bucket, key = split_uri(uri)
    return f"{scheme}://{bucket}/{key}" if "://" in glob.pattern else key


def _common(folder: str, prefixes: tuple[str, ...]) -> list[str]:
    """Return the beginnings that a URI in the folder and with one of the prefixes has."""
    if not prefixes:
        return [folder]
    return [
        max(folder, prefix, key=len) for prefix in prefixes if prefix.startswith(folder) or folder.startswith(prefix)
    ]

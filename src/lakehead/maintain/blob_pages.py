"""Closes listings that are not read to their end."""

from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from types import AsyncGeneratorType, TracebackType
from typing import Generic, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class closing(Generic[T]):  # noqa: N801 - used like contextlib.aclosing
    """`async with closing(store.list(…)) as pages`: closes the listing at the end.

    All listings are generators; one that is not exhausted would be closed by a task of asyncio. Unlike `aclosing` it
    leaves a generator alone whose reader is thrown away while it waits for a page.
    """

    pages: AsyncIterable[T]

    async def __aenter__(self) -> AsyncGenerator[T, None]:
        return cast("AsyncGenerator[T, None]", self.pages)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        generator = cast("AsyncGeneratorType[T, None]", self.pages)
        if not generator.ag_running:
            await generator.aclose()

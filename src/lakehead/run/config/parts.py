"""What every part of a configuration is made of: strict values, secrets by reference, faults in our own words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.types import Strict
from pydantic_core import PydanticCustomError

from lakehead.errors import Misconfigured


class Part(BaseModel):
    """A part of a configuration: frozen, without unknown keys, and silent about what it was given."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)


def wrong(sentence: str) -> PydanticCustomError:
    """A fault of our own. The sentence goes on after the key's path, and holds nothing of what was given."""
    return PydanticCustomError("lakehead", "{sentence}", {"sentence": sentence})


Text = Annotated[str, StringConstraints(min_length=1)]
Switch = Annotated[bool, Strict()]
Whole = Annotated[int, Strict()]

LATER = "Known and checked; not acted on yet."
NAME = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
"""What a table may be called in the lakehouse."""

REFERENCE = '{"env": "NAME"} or {"file": "path"}'


class Secret(Part):
    """Where a secret stands. The configuration never holds the secret itself."""

    env: Text | None = Field(None, description="The environment variable that holds it.")
    file: Text | None = Field(
        None, description="The file that holds it, relative to the working directory. A last line break is no part."
    )

    def reveal(self, environment: Mapping[str, str]) -> str:
        """The secret. Raises `Misconfigured` if it is not where it should be."""
        if self.env is not None:
            if self.env not in environment:
                raise Misconfigured(f"The environment variable {self.env} is not set. A secret is expected in it.")
            return environment[self.env]
        try:
            return Path(self.file or "").read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise Misconfigured(
                f"The file {self.file} cannot be read ({reason}). A secret is expected in it."
            ) from None


def _reference(given: object) -> Secret:
    match given:
        case Secret():
            return given
        case {"env": str(name), **rest} if name and not rest:
            return Secret(env=name)
        case {"file": str(path), **rest} if path and not rest:
            return Secret(file=path)
        case _:
            raise wrong(f"must be a reference to the secret, and never the secret itself: write {REFERENCE}.")


def _setting(given: object) -> str | Secret:
    match given:
        case str():
            return given
        case bool():
            return str(given).lower()
        case int():
            return str(given)
        case {} | Secret():
            return _reference(given)
        case _:
            raise wrong(f"must be text, a whole number, true or false, or a reference to a secret: {REFERENCE}.")


SecretReference = Annotated[Secret, BeforeValidator(_reference, json_schema_input_type=Secret)]
Setting = Annotated[str | Secret, BeforeValidator(_setting, json_schema_input_type=str | bool | int | Secret)]

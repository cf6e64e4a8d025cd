"""Base classes and field types of the configuration models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from lakehead.errors import Misconfigured


class ConfigModel(BaseModel):
    """Base class of the configuration models: frozen, refuses unknown keys, and shows no input in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)


def invalid(message: str) -> PydanticCustomError:
    """Return a validation error with our own message. It follows the key's path, and must not contain the value."""
    return PydanticCustomError("lakehead", "{message}", {"message": message})


NonEmptyText = Annotated[str, StringConstraints(min_length=1)]

TABLE_NAME = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
"""The pattern of table names in the lakehouse."""

REFERENCE = '{"env": "NAME"} or {"file": "path"}'


class SecretReference(ConfigModel):
    """A reference to a secret in an environment variable or a file. The configuration never contains the secret."""

    env: NonEmptyText | None = Field(None, description="The environment variable with the secret.")
    file: NonEmptyText | None = Field(
        None, description="The file with the secret, relative to the working directory. A final line break is ignored."
    )

    def resolve(self, environment: Mapping[str, str]) -> str:
        """Return the secret. Raises `Misconfigured` if the variable is not set or the file cannot be read."""
        if self.env is not None:
            if self.env not in environment:
                raise Misconfigured(f"The environment variable {self.env} is not set. Put the secret there.")
            return environment[self.env]
        try:
            return Path(self.file or "").read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise Misconfigured(f"The file {self.file} cannot be read ({reason}). Put the secret there.") from None


def _reference(given: object) -> SecretReference:
    match given:
        case SecretReference():
            return given
        case {"env": str(name), **rest} if name and not rest:
            return SecretReference(env=name)
        case {"file": str(path), **rest} if path and not rest:
            return SecretReference(file=path)
        case _:
            raise invalid(f"must be a reference to a secret, not the secret itself: write {REFERENCE}.")


def _setting(given: object) -> str | SecretReference:
    match given:
        case str():
            return given
        case bool():
            return str(given).lower()
        case int():
            return str(given)
        case {} | SecretReference():
            return _reference(given)
        case _:
            raise invalid(f"must be a string, an integer, true or false, or a reference to a secret: {REFERENCE}.")


SecretField = Annotated[SecretReference, BeforeValidator(_reference, json_schema_input_type=SecretReference)]
TextOrSecret = Annotated[
    str | SecretReference, BeforeValidator(_setting, json_schema_input_type=str | bool | int | SecretReference)
]

"""Commands such as `lakehead consume CONFIG`, beside which there are others: `lakehead consume files CONFIG`."""

from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Context

DEFAULT = "run"
"""The name of the command that runs a configuration. It may be left out."""


class ConfigOrCommand(TyperGroup):
    """Takes what is not the name of one of its commands for a configuration that is to be run."""

    def resolve_command(self, ctx: "Context", args: list[str]) -> Any:
        """Return the named command, or the one that runs a configuration."""
        known = args and (args[0] in self.commands or args[0] in ("--help", "-h"))
        return super().resolve_command(ctx, args if known else [DEFAULT, *args])

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Leave options that come before the configuration to the command that runs it."""
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

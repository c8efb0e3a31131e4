"""What every command of `tfsim` stands on: lazy loading, and usage errors with the nearest name.

Kept apart from `main` because the command modules import it too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command as build_command

from tfsim.errors import InputError, unknown

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter


class Lazy(NamedTuple):
    """A command that is imported when it runs: its module holds a typer app named `app`."""

    module: str
    help: str


class Group(TyperGroup):
    """A command group whose usage errors name the nearest command."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        if not args and not self.invoke_without_command:
            names = ", ".join(self.list_commands(ctx))
            raise InputError(f"{ctx.command_path}: missing command: choose from {names}")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: "Context", args: list[str]) -> Any:
        if args[0] not in self.list_commands(ctx):
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group that knows the names and help lines of its commands, and imports one to run it."""

    table: ClassVar[dict[str, Lazy]] = {}

    def list_commands(self, ctx: "Context") -> list[str]:
        return list(self.table)

    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":
        if cmd_name not in self.table:
            return None
        command = build_command(import_module(self.table[cmd_name].module).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self.table.items()])


def new_app(help: str | None = None, cls: type[Group] = Group, **settings: Any) -> typer.Typer:
    """A typer app in the house style.

    Plain help text and no completion installer: typer's rich help alone would cost 0.1 s at start.
    """
    return typer.Typer(
        help=help,
        cls=cls,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        **settings,
    )

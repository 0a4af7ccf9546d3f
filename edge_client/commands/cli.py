"""The `spry` command.

Its subcommands are entry points of the group ``spry.commands``: a ``typer.Typer`` or a plain function, imported only
when the subcommand runs, so that ``spry --help`` costs no torch and works on a device that has none. Any distribution
may add one; the table below gives this project's own subcommands their line in the help and the extra they need.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Annotated, Any, NamedTuple, NoReturn, Protocol

import typer
from typer.core import TyperGroup
from typer.main import get_command

from edge_client import __version__, plugins
from edge_client.commands.console import mute
from edge_client.commands.interrupts import end_as_interrupted
from edge_client.commands.membership.successor import allow_successors, without_httpx_command
from edge_client.commands.options.panels import PanelCommand
from edge_client.commands.options.retired import refuse
from edge_client.commands.outcome import INTERRUPTED, complain, outcome
from edge_client.errors import RuntimeMissing

OWN_PACKAGES = ("edge_client", "export", "server")
# typer names only the subclass; the base covers unknown options, missing arguments and unknown commands.
UsageError: Any = typer.BadParameter.__base__


class Subcommand(NamedTuple):
    summary: str
    extra: str | None = None


SUBCOMMANDS = {
    "demo": Subcommand("See the whole system learn on this machine.", "demo"),
    "new": Subcommand("Look at your data, and make a project from them.", "server"),
    "up": Subcommand("Start a project: export, server, job and trial devices.", "server"),
    "status": Subcommand("Show a project's running processes, and its job's state.", "server"),
    "down": Subcommand("End a project's server and trial devices.", "server"),
    "join": Subcommand("Take part in a server's rounds with this device's data."),
    "predict": Subcommand("Predict with this device's weights."),
    "generate": Subcommand("Continue a text with this device's weights."),
    "chat": Subcommand("Hold a conversation with this device's model."),
    "doctor": Subcommand("Check this machine, and the connection to a server."),
    "install-service": Subcommand("Let systemd run `spry join` or `spry serve`."),
    "export": Subcommand("Turn a Hugging Face model into a bundle for devices.", "export"),
    "keys": Subcommand("Make keys, and sign bundles for devices that trust them."),
    "bundle": Subcommand("Publish bundles on mirrors for devices."),
    "inspect": Subcommand("Show a bundle's programs, sizes, memory and verification."),
    "bench": Subcommand("Measure steps, and the noise of gradients."),
    "serve": Subcommand("Run the server.", "server"),
    "job": Subcommand("Create, follow and control jobs on a server.", "server"),
    "token": Subcommand("Make and revoke enrolment tokens.", "server"),
    "access": Subcommand("Give people access to a server, each with a role.", "server"),
    "devices": Subcommand("Show and revoke devices.", "server"),
    "adapter": Subcommand("Download or share a job's adapter.", "server"),
    "merge": Subcommand("Merge an adapter into its base model.", "export"),
    "simulate": Subcommand("Train a fleet of virtual clients on this machine.", "simulate"),
    "backup": Subcommand("Copy a server's data to a file while it runs.", "server"),
    "restore": Subcommand("Make a server's data folder from a backup.", "server"),
    "flower": Subcommand("Write an app that trains a bundle over Flower."),
    "report": Subcommand("Compare simulated runs: tables and learning curves.", "simulate"),
}


class Command(Protocol):
    """A function whose parameters and docstring typer reads, or a `typer.Typer`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run."""
        ...


def installed() -> Mapping[str, EntryPoint]:
    return plugins.added(plugins.COMMANDS)


def describe(entry: EntryPoint) -> Subcommand:
    return SUBCOMMANDS.get(entry.name, Subcommand(f"Added by {plugins.distribution(entry)}."))


def load(entry: EntryPoint) -> Any:
    """Import a subcommand and give it back as the command typer runs."""
    target: Any = entry.load()
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False, rich_markup_mode=None)
        target.command(cls=PanelCommand)(function)
    return get_command(target)


def missing_extra(entry: EntryPoint, error: ImportError) -> RuntimeMissing | None:
    """Say which extra a missing library is of; None when the failed import is a defect of our own."""
    extra = describe(entry).extra
    library = (error.name or "").partition(".")[0]
    if extra is None or not library or library in OWN_PACKAGES:
        return None
    reason = f"{library} is not installed" if isinstance(error, ModuleNotFoundError) else str(error)
    return RuntimeMissing(f"spry {entry.name}", extra, reason)


class LazyGroup(TyperGroup):
    """Lists placeholders; loads a subcommand when it is called."""

    called: EntryPoint | None = None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        self.called = installed().get(name or "")
        return name, self._loaded(ctx) or placeholder, rest

    def _loaded(self, ctx: Any) -> Any:
        """Load the subcommand itself; while a shell completes its words, nothing where a library is missing."""
        try:
            return load(self.called) if self.called else None
        except ImportError:
            if ctx.resilient_parsing:
                return None
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except ImportError as error:
            missing = missing_extra(self.called, error) if self.called else None
            if missing is None:
                raise
            raise missing from error


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spry {__version__}")
        raise typer.Exit


def spry(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 -- its callback does the work
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, only results and errors.")] = False,
) -> None:
    """Federated fine-tuning of language models on small devices, in their inference runtimes."""
    if quiet:
        mute()
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def build() -> Any:
    """Build the command tree: the options of `spry` itself and one placeholder per installed subcommand."""
    app = typer.Typer(cls=LazyGroup, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(spry)
    for name, entry in sorted(installed().items()):
        app.command(name, help=describe(entry).summary)(lambda: None)
    return get_command(app)


def run(args: Sequence[str]) -> int:
    """Run the command line and give back its exit code; errors a user can act on become one line on stderr."""
    try:
        return outcome(lambda: _called(args))
    except UsageError as error:
        context: typer.Context | None = error.ctx
        if context and type(error).__name__ == "NoArgsIsHelpError":  # a group alone, as `spry job`
            typer.echo(context.get_help())
            return 0
        where = context.command_path if context else "spry"
        return complain(f"{error.format_message().rstrip('.')} (see `{where} --help`)")
    except typer.Abort:
        return complain("stopped", 1)


def _called(args: Sequence[str]) -> Any:
    try:
        return build()(args=list(args), prog_name="spry", standalone_mode=False)
    except UsageError as error:
        refuse(getattr(error, "option_name", ""))
        raise


def main() -> NoReturn:
    end_as_interrupted()  # so that what is half made is cleaned up whichever way a command is ended
    without_httpx_command()
    allow_successors()
    sys.exit(run(sys.argv[1:]))

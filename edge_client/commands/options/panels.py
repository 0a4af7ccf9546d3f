"""The help of commands with many options: plain text, with a heading above the options of each group."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperOption

from edge_client.commands.console import mute


class PanelCommand(TyperCommand):
    """Lists the options without a group first, below `Options` as in every command's help, and takes `--quiet`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """List the command's parameters; `spry --help` tells of `--quiet`, so that no command's own help repeats it."""
        return [*super().get_params(ctx), _quiet()]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            own = "Arguments" if parameter.param_type_name == "argument" else "Options"
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or own, []).append(record)
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _quiet() -> TyperOption:
    def heard(_ctx: Any, _option: Any, wanted: bool) -> None:
        if wanted:
            mute()

    return TyperOption(
        param_decls=["--quiet"], is_flag=True, hidden=True, expose_value=False, is_eager=True, callback=heard
    )

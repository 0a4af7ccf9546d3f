"""`spry adapter`: what a job has learned, in the formats that others load."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from server.cli.common import CaOption, JsonOption, NameArgument, ServerOption, TokenOption, connect, say, show_json
from server.cli.connection import AdminError, Administrator
from server.cli.files import Download, take
from server.cli.hub import push_folder
from server.errors import NotWhole
from server.formats.registry import MERGED, NAMES, WHOLE, WITH_BASE

_LOADED = {
    "peft": "load it with PeftModel.from_pretrained(base, {out!r}), or `spry merge` it",
    "gguf": "llama-cli -m base.gguf --lora {out}/adapter.gguf, or `ollama create NAME -f {out}/Modelfile`",
    WHOLE: "llama-cli -m {out}/model.gguf, or `ollama create NAME -f {out}/Modelfile`",
    MERGED: "load it with AutoModel…from_pretrained({out!r})",
}
FormatOption = Annotated[str, typer.Option("--format", help=f"The format: {', '.join(NAMES)}.")]
ModelOption = Annotated[
    str | None, typer.Option(help=f"The base model, as it was given to `spry export`; for {' and '.join(WITH_BASE)}.")
]
VersionOption = Annotated[int | None, typer.Option(help="An earlier version; the newest when left out.")]

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def group() -> None:
    """Adapters: what a job has learned."""


@app.command()
def download(
    job: NameArgument,
    out: Annotated[Path, typer.Option(help="The folder for it.")],
    form: FormatOption = "peft",
    model: ModelOption = None,
    version: VersionOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the adapter at --out.")] = False,
    server: ServerOption = None,
    admin_token: TokenOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write what was learned: for PEFT, for llama.cpp and Ollama (gguf), or the whole model with it (merged).

    merged-gguf is the whole model as one file for llama.cpp and Ollama.

    Example: spry adapter download news --out adapter/
    """
    if out.exists() and not out.is_dir():
        raise AdminError(f"{out} is not a folder; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise AdminError(f"{out} exists; choose another --out or give --overwrite")
    _check(form, model)
    with connect(server, admin_token, ca) as administrator:
        taken = save(administrator, job, out, form, model, version)
    if as_json:
        show_json({"out": str(out), "format": form, "version": taken.version, "trained": taken.trained})
    else:
        say(f"{out}: {_LOADED[form].format(out=str(out).rstrip('/'))}")


@app.command()
def push(
    job: NameArgument,
    to: Annotated[str, typer.Option(help="The repository on the hub, as in my-name/news-adapter.")],
    form: FormatOption = "peft",
    model: ModelOption = None,
    version: VersionOption = None,
    private: Annotated[bool, typer.Option("--private", help="Nobody else sees a repository that is made.")] = False,
    server: ServerOption = None,
    admin_token: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Download it, and upload it to a hub by the hub's own client.

    Example: spry adapter push news --to my-name/news-adapter
    """
    _check(form, model)
    with tempfile.TemporaryDirectory(prefix="spry-push-") as folder:
        with connect(server, admin_token, ca) as administrator:
            taken = save(administrator, job, Path(folder), form, model, version)
        say(push_folder(Path(folder), to, f"{job}, version {taken.version}", private=private))


def _check(form: str, model: str | None) -> None:
    """Check the options before anything is asked of a server."""
    if form not in NAMES:
        raise AdminError(f"--format must be one of {', '.join(NAMES)}, got {form!r}")
    if (form in WITH_BASE) != (model is not None):
        raise AdminError(
            f"--model is the base that {' and '.join(WITH_BASE)} merge with, on this machine: give both or none"
        )


def save(
    administrator: Administrator, job: str, out: Path, form: str, model: str | None, version: int | None
) -> Download:
    """Download an adapter; refuse one that nothing has trained yet, unless its number is given."""
    taken = take(administrator, job, "peft" if form in WITH_BASE else form, version)
    if not taken.trained and version is None:
        raise AdminError(
            f"job {job} has learned nothing yet: wait for its first round (spry job show {job} --follow), or take what "
            "it starts from with --version 0"
        )
    if not taken.trained:
        typer.secho("version 0 is what the job starts from: it changes nothing yet", err=True)
    if model is None:
        taken.write(out)
    else:
        _merge(administrator, taken, model, out, form, f"{job}, version {taken.version}")
    return taken


def save_adapter(administrator: Administrator, job: str, out: Path) -> None:
    """Download the newest adapter, for PEFT."""
    take(administrator, job, "peft").write(out)


def _merge(administrator: Administrator, taken: Download, model: str, out: Path, form: str, name: str) -> None:
    """Merge by `spry merge`, with the task and the labels of the job's bundle; as one file where that is asked for."""
    from edge_client.commands.cli import installed, missing_extra
    from edge_client.data.templates import Template
    from server.formats.ollama import modelfile
    from server.formats.whole import write_whole

    entry = installed()["merge"]
    told = taken.manifest(administrator).model
    speaks = told.task == "causal-lm"
    if form == WHOLE and not speaks:
        raise NotWhole(f"it is trained for {told.task}, not for causal-lm")
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as beside:
        adapter, merged = Path(beside) / "adapter", Path(beside) / "merged"
        taken.write(adapter)
        try:
            with redirect_stdout(io.StringIO()):  # where it lies is not where it will be
                entry.load()(adapter, model, merged, told.task, json.dumps(told.labels))
        except ImportError as error:
            raise missing_extra(entry, error) or error from None
        source = f"./{write_whole(merged, name).name}" if form == WHOLE else "."
        if speaks:
            (merged / "Modelfile").write_text(modelfile(source, None, Template.beside(merged), base=told.name))
        out.mkdir(exist_ok=True)
        kept = [merged / source, merged / "Modelfile"] if form == WHOLE else list(merged.iterdir())
        for file in kept:
            file.replace(out / file.name)

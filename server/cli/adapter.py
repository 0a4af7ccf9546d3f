"""`spry adapter`: what a job has learned, in the formats that others load."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edge_client.checkpoints import silent_hub
from edge_client.commands.options.groups import OptionGroup, command_group, grouped
from edge_client.distribution import install_command
from server.cli.common import JsonOption, NameArgument, ServerOptions, say, show_json
from server.cli.connection import AdminError, Administrator
from server.cli.files import Download, take
from server.errors import NotWhole
from server.formats.registry import MERGED, NAMES, WHOLE, WITH_BASE

_LOADED = {
    "peft": "load it with PeftModel.from_pretrained(base, {out!r}), or `spry merge` it",
    "gguf": "llama-cli -m base.gguf --lora {out}/adapter.gguf, or `ollama create NAME -f {out}/Modelfile`",
    WHOLE: "llama-cli -m {out}/model.gguf, or `ollama create NAME -f {out}/Modelfile`",
    MERGED: "load it with AutoModel…from_pretrained({out!r})",
}

app = command_group("Download or share a job's adapter.")


@dataclass(frozen=True)
class FormOptions(OptionGroup):
    """Which weights of a job, and as what."""

    title = "Options"

    form: Annotated[str, typer.Option("--format", help=f"The format: {', '.join(NAMES)}.")] = "peft"
    model: Annotated[
        str | None,
        typer.Option(help=f"The base model, as it was given to `spry export`; for {' and '.join(WITH_BASE)}."),
    ] = None
    version: Annotated[int | None, typer.Option(help="The version; by default the newest.")] = None

    def check(self) -> None:
        """Refuse what does not go together, before anything is asked of a server."""
        if self.form not in NAMES:
            raise AdminError(f"--format must be one of {', '.join(NAMES)}, got {self.form!r}")
        if (self.form in WITH_BASE) != (self.model is not None):
            raise AdminError(
                f"--model is the base that {' and '.join(WITH_BASE)} merge with, on this machine: give both or none"
            )


@app.command()
@grouped
def download(
    job: NameArgument,
    out: Annotated[Path, typer.Option(help="The folder for it.")],
    wanted: FormOptions,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the adapter at --out.")] = False,
    *,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Download the adapter for PEFT, for llama.cpp and Ollama (gguf), or merged into the whole model (merged).

    merged-gguf is the whole model as one file for llama.cpp and Ollama.

    Example: spry adapter download news --out adapter/
    """
    if out.exists() and not out.is_dir():
        raise AdminError(f"{out} is not a folder; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise AdminError(f"{out} exists; choose another --out or give --overwrite")
    wanted.check()
    with server.connect() as administrator:
        taken = save(administrator, job, out, wanted)
    if as_json:
        show_json({"out": str(out), "format": wanted.form, "version": taken.version, "trained": taken.trained})
    else:
        say(f"{out}: {_LOADED[wanted.form].format(out=str(out).rstrip('/'))}")


@app.command()
@grouped
def push(
    job: NameArgument,
    to: Annotated[str, typer.Option(help="The repository on the hub, as in my-name/news-adapter.")],
    wanted: FormOptions,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    *,
    server: ServerOptions,
) -> None:
    """Download the adapter, and upload it to a hub with the hub's own client.

    Example: spry adapter push news --to my-name/news-adapter
    """
    wanted.check()
    with tempfile.TemporaryDirectory(prefix="spry-push-") as folder:
        with server.connect() as administrator:
            taken = save(administrator, job, Path(folder), wanted)
        say(push_folder(Path(folder), to, f"{job}, version {taken.version}", private=private))


def save(administrator: Administrator, job: str, out: Path, wanted: FormOptions) -> Download:
    """Download an adapter; one that nothing has trained yet is taken by its number alone, and told to be so."""
    taken = take(administrator, job, "peft" if wanted.form in WITH_BASE else wanted.form, wanted.version)
    if not taken.trained and wanted.version is None:
        raise AdminError(
            f"job {job} has learned nothing yet: wait for its first round (spry job show {job} --follow), or take what "
            "it starts from with --version 0"
        )
    if not taken.trained:
        typer.secho("version 0 is what the job starts from: it changes nothing yet", err=True)
    if wanted.model is None:
        taken.write(out)
    else:
        _merge(administrator, taken, wanted.model, out, wanted.form, f"{job}, version {taken.version}")
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


def push_folder(folder: Path, repository: str, message: str, *, private: bool) -> str:
    """Make the repository where there is none, and send what is in the folder; gives a line with its address.

    The token is the one that the client finds: `hf auth login`, or the variable HF_TOKEN.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
    except ImportError as error:
        raise AdminError(f"a push needs the hub's client ({error}): {install_command('hub')}") from None
    if silent := silent_hub():
        raise AdminError(
            f"the hub {silent} cannot be reached, so nothing is pushed: download it, and where it can be reached "
            f"`hf upload {repository} FOLDER`"
        )
    api = HfApi()
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=message)
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise AdminError(
            f"the hub did not take {repository} ({first}); is it yours, and are you logged in (hf auth login)?"
        ) from None
    return f"pushed to {made}"

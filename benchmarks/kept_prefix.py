"""`spry simulate` with a model that computes the blocks before its adapters once for each text.

    python benchmarks/kept_prefix.py FOLDER simulate ...

Frozen blocks say the same of a text in every round, so their results are kept in FOLDER in 16 bits: a run whose
adapters are in the last block alone takes seconds. Only for encoders of BERT's kind.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import export.rows
from edge_client.commands.cli import main
from edge_client.data.batches import Batch
from export.row_groups import RowGroup
from export.rows import RowModel

FOLDER = "KEPT_PREFIX"
"""The environment variable that names the folder of kept results."""
_Parts = tuple[Sequence[nn.Module], nn.Module]
"""The first blocks, and what is before them."""


class _Kept(nn.Module):
    """Stands where embeddings are looked up: a text's first token is its number among those that are kept."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.states, self._kind = torch.zeros(0, dtype=torch.float16), kind

    def forward(self, input_ids: Tensor, **_others: Any) -> Tensor:
        return self.states[input_ids[:, 0]][:, : input_ids.shape[1]].to(self._kind)


class _Passed(nn.Module):
    """Stands where a block was whose result is kept."""

    def forward(self, states: Tensor, *_others: Any, **_more: Any) -> Tensor:
        return states


def _of_first_token(block: Any) -> Any:
    """A last block's forward that computes the one row that a pooler reads."""
    attention, own = block.attention, block.attention.self

    def heads(states: Tensor) -> Tensor:
        return states.view(*states.shape[:-1], -1, own.attention_head_size).transpose(1, 2)

    def forward(states: Tensor, mask: Tensor, *_others: Any, **_more: Any) -> Tensor:
        first = states[:, :1]
        scores = heads(own.query(first)) @ heads(own.key(states)).transpose(2, 3) * own.scaling + mask[:, :, :1]
        mixed = (scores.softmax(-1) @ heads(own.value(states))).transpose(1, 2).flatten(-2)
        return block.feed_forward_chunk(attention.output(mixed, first))

    return forward


class PrefixKept(RowModel):
    """A model that begins with what enters its first adapted block."""

    def __init__(self, *arguments: Any, folder: Path, **options: Any) -> None:
        super().__init__(*arguments, **options)
        encoder: Any = self._loaded.model.base_model
        self._encoder, self._blocks = encoder, encoder.encoder.layer
        first = self.manifest.segments[min(self._first.values())].first_block
        self._kept = _Kept(self.arithmetic)
        self._before: _Parts = [*self._blocks[:first]], encoder.embeddings
        self._after: _Parts = [_Passed() for _ in range(first)], self._kept
        self._file = folder / f"{first}-{self.arithmetic}.npz".replace("torch.", "")
        self._numbers: dict[bytes, int] = {}
        if self._file.exists():
            with np.load(self._file) as kept:
                self._numbers = {bytes(name): number for number, name in enumerate(kept["texts"])}
                self._kept.states = torch.from_numpy(kept["states"])
        self._saved = len(self._numbers)
        self._put(self._after)
        if first < len(self._blocks):
            self._blocks[-1].forward = _of_first_token(self._blocks[-1])

    def _behind(self, group: RowGroup, names: Any) -> dict[str, Tensor]:
        """Give one number for each factor where one token is computed."""
        units = self.manifest.bottlenecks
        behind = super()._behind(group, names)
        return {
            name: zeros if units[name].token is None else zeros.detach()[:, :1].requires_grad_()
            for name, zeros in behind.items()
        }

    def _put(self, parts: _Parts) -> None:
        self._encoder.embeddings = parts[1]
        for number, block in enumerate(parts[0]):
            self._blocks[number] = block

    def _rows(self, weights: Any, each: int | None, batch: Batch, group: RowGroup, behind: Any) -> Any:
        names = [blake2b(row.tobytes(), digest_size=16).digest() for row in batch.tokens["input_ids"][group.rows]]
        new = [at for at, name in enumerate(names) if name not in self._numbers]
        if new:
            self._keep({names[at]: int(group.rows[at]) for at in new}, batch)
        ids = batch.tokens["input_ids"].copy()
        ids[group.rows, 0] = [self._numbers[name] for name in names]
        return super()._rows(weights, each, batch._replace(tokens={**batch.tokens, "input_ids": ids}), group, behind)

    def _keep(self, rows: dict[bytes, int], batch: Batch) -> None:
        """Compute and keep the results of new texts."""
        chosen = [*rows.values()]
        tokens = {name: torch.from_numpy(batch.tokens[name][chosen]) for name in self.manifest.inputs}
        self._put(self._before)
        lower = self.arithmetic is not torch.float32
        blocks = self._encoder.encoder.layer
        self._encoder.encoder.layer = blocks[: len(self._before[0])]
        with torch.no_grad(), torch.autocast("cpu", self.arithmetic, enabled=lower):
            found = self._encoder(**tokens).last_hidden_state.to(torch.float16)
        self._encoder.encoder.layer = blocks
        self._put(self._after)
        kept, first = self._kept, len(self._numbers)
        if len(kept.states) < first + len(found):  # twice as many, so that little is copied
            room = found.new_zeros(first + len(found), *found.shape[1:])
            kept.states = torch.cat([kept.states.reshape(-1, *found.shape[1:]), room])
        kept.states[first : first + len(found)] = found
        self._numbers |= {name: first + place for place, name in enumerate(rows)}

    def save(self) -> None:
        """Write the computed results, for the next run of the same data and length."""
        if len(self._numbers) == self._saved:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        names = np.frombuffer(b"".join(self._numbers), np.uint8).reshape(-1, 16)
        temporary = self._file.with_suffix(".part.npz")
        np.savez(temporary, texts=names, states=self._kept.states[: len(names)].numpy())
        temporary.replace(self._file)


def open_model(source: str, **options: Any) -> RowModel:
    """Open a model for `spry simulate`: the entry point by which this file's one takes the place of the exporter's."""
    model = export.rows.open_model(source, model=partial(PrefixKept, folder=Path(os.environ[FOLDER])), **options)
    assert isinstance(model, PrefixKept)
    atexit.register(model.save)
    return model


def run() -> None:
    os.environ[FOLDER], sys.argv[1:] = sys.argv[1], sys.argv[2:]
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(1))  # what was computed is saved
    with TemporaryDirectory() as folder:  # an installed distribution is a folder that says so
        info = Path(folder) / "spry_kept_prefix-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spry-kept-prefix\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[spry.simulation]\nkept-prefix = kept_prefix:open_model\n")
        sys.path.append(folder)
        main()


if __name__ == "__main__":
    run()

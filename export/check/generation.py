"""Verify the programs that generate against the model: their greedy tokens, and the logits behind them.

The programs read a prompt that takes more than one pass of `prefill`, and go on by themselves; the model then reads all
of it at once, without a cache, and predicts the token in each place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from edge_client.bundle.manifest import Check, Manifest
from edge_client.generation.decoder import Decoder
from edge_client.runtimes.runtime import open_runtime
from export.check.reference import Reference
from export.check.verify import JVP_BOUND

_TOKENS = 12
"""Generated, if there is room for them."""
_BEYOND = 3
"""Tokens of the prompt that a second pass reads."""
_TIE = 1e-4
"""The share of the logits' size within which two of them are equally likely."""


def verify_generation(
    folder: Path, manifest: Manifest, runtime: str, model: Reference, ids: Tensor, values: Mapping[str, Tensor]
) -> list[Check]:
    """Generation by one runtime beside the model's own: `ids` begin a text, `values` are the adapter's weights."""
    spec = manifest.generation
    assert spec is not None
    weights = {name: value.numpy() for name, value in values.items()}
    count = min(spec.chunk + _BEYOND, spec.length - 1)
    tokens = [int(token) for token in np.resize(ids.numpy(), count)]
    logits: list[np.ndarray] = []
    with open_runtime(runtime, folder) as opened:
        decoder = Decoder(manifest, opened, runtime, weights)
        unread = tokens
        while len(logits) < _TOKENS and decoder.room >= len(unread):
            logits.append(decoder.read(unread))
            unread = [int(logits[-1].argmax())]
            tokens = tokens + unread
        decoder.release()
    expected = model.logits(tokens, values).numpy()[count - 1 : -1]
    return _checks(manifest, runtime, np.stack(logits), expected)


def _checks(manifest: Manifest, runtime: str, told: np.ndarray, expected: np.ndarray) -> list[Check]:
    precision = manifest.runtimes[runtime].precision
    size = float(np.sqrt(np.mean(np.square(expected))))
    error = float(np.sqrt(np.mean(np.square(told - expected)))) / max(size, 1e-30)
    chosen = np.take_along_axis(expected, told.argmax(-1)[:, None], -1)[:, 0]
    others = int(np.sum(expected.max(-1) - chosen > _TIE * size))
    bound, none = JVP_BOUND[precision], 0.0 if precision == "none" else None
    lines = (
        (f"generation, RMS error of the logits of {len(told)} tokens", error, bound),
        ("generation, greedy tokens that are not the model's", float(others), none),
    )
    return [
        Check(runtime, precision, what, value, limit, limit is None or value <= limit) for what, value, limit in lines
    ]

"""Weights to begin with that somebody has trained: a simulation's state, or an adapter."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from edge_client.arrays import Weights
from server.errors import SimulationError
from server.simulation.run.folder import RunFolder

ADAPTER_FILE = "adapter_model.safetensors"


def weights_in(folder: Path, initial: Weights) -> Weights:
    """Read the weights of the parameters in `initial`, which they must fit."""
    weights = _read(folder)
    differing = sorted(n for n, value in initial.items() if n not in weights or weights[n].shape != value.shape)
    if differing:
        raise SimulationError(
            f"{folder} has other weights than this adapter and these labels need, first {differing[0]}; give the "
            "model, the data and the adapter that they were trained with"
        )
    return {name: weights[name].astype(value.dtype) for name, value in initial.items()}


def _read(folder: Path) -> Weights:
    state = RunFolder(folder).state()
    if state is not None:
        return state.model.weights
    if not (path := folder / ADAPTER_FILE).is_file():
        raise SimulationError(
            f"{folder} holds neither a checkpoint of `spry simulate` nor {ADAPTER_FILE}; give the folder of a run, or "
            "of an adapter"
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise SimulationError(f"{path} cannot be read ({error}); download it again") from None

"""A simulation whose model is a bundle: what an export has settled stands in its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import DEFAULT_TASK, FILE_NAME, Manifest
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.runtimes.runtime import chosen
from server.errors import SimulationError


def completed(asked: Mapping[str, Any], runtime: str | None) -> dict[str, Any]:
    """Complete what is asked of a plan by the bundle that it names as its model; with another model it is enough."""
    model = Path(asked["model"])
    if not (model / FILE_NAME).is_file():
        if runtime is not None:
            raise SimulationError(f"--runtime is for a bundle's programs, and {model} is no bundle: leave it out")
        return dict(asked)
    bundle = Bundle.open(model, verify=False)
    manifest = bundle.manifest
    _check(asked, manifest)
    installed = [name for name in chosen(runtime) if name in manifest.runtimes]
    if not installed:
        raise SimulationError(
            f"{model} has programs for {', '.join(manifest.runtimes)}, and none of these is installed or asked for; "
            "take another --runtime, or export the bundle for it"
        )
    config = manifest.adapter.config
    adapter = AdapterOptions(
        manifest.adapter.method, rank=int(config.get("r") or 0), alpha=float(config.get("lora_alpha") or 0)
    )
    return {**asked, "runtime": installed[0], "task": manifest.model.task, "adapter": asdict(adapter)}


def _check(asked: Mapping[str, Any], manifest: Manifest) -> None:
    """Refuse what was settled when the bundle was exported, and what its programs do not have."""
    settled = {
        "an adapter": bool(asked.get("adapter")),
        "--task": asked.get("task", DEFAULT_TASK) not in (DEFAULT_TASK, manifest.model.task),
        "--random-weights": asked.get("random_weights", False),
        "--arithmetic": asked.get("arithmetic", "float32") != "float32",
        "--device": asked.get("device", "cpu") != "cpu",
    }
    if given := [name for name, is_given in settled.items() if is_given]:
        raise SimulationError(
            f"--model {asked['model']} is a bundle, whose programs have their own: leave out {' and '.join(given)}"
        )

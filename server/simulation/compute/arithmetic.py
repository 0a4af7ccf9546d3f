"""Numbers that a processor has no instructions for: they work, slowly enough to look like a hang."""

from __future__ import annotations

from rich.console import Console

from server.simulation.plan import Arithmetic


def tell_if_slow(arithmetic: Arithmetic, device: str) -> None:
    """Say so before hours are spent; the numbers of a run must not depend on the machine, so nothing is changed."""
    if arithmetic == "bfloat16" and device == "cpu" and not _has_bfloat16():
        Console(stderr=True).print(
            "this processor has no instructions for bfloat16, which takes tens of times as long here: "
            "--arithmetic float32 is faster",
            highlight=False,
            soft_wrap=True,
        )


def _has_bfloat16() -> bool:
    import torch

    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 -- torch has no public name for it

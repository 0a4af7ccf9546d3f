"""Adapters for tests that are about something else: small, and in all blocks."""

from typing import Any

from edge_client.commands.options.adapter import AdapterOptions


def everywhere(method: str = "lora", **options: Any) -> AdapterOptions:
    small = {"rank": 1} if method == "lora" else {}
    return AdapterOptions(method, **{"last_blocks": 0, **small, **options})

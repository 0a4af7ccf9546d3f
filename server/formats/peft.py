"""The folder that `PeftModel.from_pretrained` loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath

from safetensors.numpy import save

from server.formats.learned import Learned


def peft_files(learned: Learned) -> Mapping[str, bytes]:
    """Write a PEFT folder; what PEFT wants beside the weights comes from the bundle."""
    config = json.dumps(learned.adapter.config, indent=2, sort_keys=True)
    return {
        PurePosixPath(learned.adapter.file).name: save(dict(sorted(learned.tensors.items())), {"format": "pt"}),
        "adapter_config.json": config.encode() + b"\n",
    }

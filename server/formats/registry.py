"""The formats in which a server hands out what a job has learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edge_client.bundle.folder import Bundle
from edge_client.errors import RuntimeMissing
from server.errors import Refusal
from server.formats.gguf import gguf_files, require_gguf
from server.formats.learned import Learned
from server.formats.peft import peft_files

FORMATS: dict[str, Callable[[Learned], Mapping[str, bytes]]] = {"peft": peft_files, "gguf": gguf_files}
"""Files by name. Merging needs the base model's weights, which a server has not: `spry adapter download` does that."""
MERGED, WHOLE = "merged", "merged-gguf"
WITH_BASE = MERGED, WHOLE
NAMES = (*FORMATS, *WITH_BASE)


def offered(bundle: Bundle) -> list[str]:
    """List the formats in which a server can hand out what a job on this bundle learns."""
    try:
        require_gguf(bundle)
    except (Refusal, RuntimeMissing):
        return [name for name in FORMATS if name != "gguf"]
    return list(FORMATS)

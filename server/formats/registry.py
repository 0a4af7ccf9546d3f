"""The formats in which a server hands out what a job has learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from server.formats.gguf import gguf_files
from server.formats.learned import Learned
from server.formats.peft import peft_files

FORMATS: dict[str, Callable[[Learned], Mapping[str, bytes]]] = {"peft": peft_files, "gguf": gguf_files}
"""Files by name. Merging needs the base model's weights, which a server has not: `spry adapter download` does that."""
MERGED, WHOLE = "merged", "merged-gguf"
WITH_BASE = MERGED, WHOLE
NAMES = (*FORMATS, *WITH_BASE)

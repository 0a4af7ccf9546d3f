"""Silence libraries that log, warn and report about themselves: messages to users are this package's."""

from __future__ import annotations

import logging
import os
import warnings


def quiet_libraries() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

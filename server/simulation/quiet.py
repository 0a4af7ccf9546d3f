"""Libraries that log, warn and report about themselves, silenced: what a user is told is ours to say."""

from __future__ import annotations

import logging
import os
import warnings


def quiet_libraries() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

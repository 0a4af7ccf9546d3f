"""The benchmarks' modules, which are no package: they import each other by their names, so load them in that order."""

import importlib.util
import os
import sys
from pathlib import Path

from tests import warm

FOLDER = Path(__file__).parent.parent / "benchmarks"


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if name == "fleet" and warm.SHARED in os.environ:  # its start would load what it serves with, in two seconds
        module.Server.UVICORN = warm.python(), "-c", "import uvicorn; uvicorn.main()"
    return module

"""The benchmarks' modules, which are no package: they import each other by their names, so load them in that order."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "benchmarks"


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Which tests run first, and which are quick: by their place, as a mark at each of two thousand would be forgotten."""

from collections import deque
from collections.abc import Sequence
from itertools import groupby

import pytest

LONG = (
    "tests/test_benchmark_scripts.py",
    "tests/test_boards.py",
    "tests/export/test_pipeline.py",
    "tests/export/test_architectures.py",
    "tests/test_guides.py",
    "tests/export/lower/test_executorch.py",
    "tests/export/test_generation.py",
    "tests/server/demo/test_demo.py",
    "tests/server/simulation/compute/",
    "tests/server/simulation/run/test_resume.py",
    "tests/edge_client/commands/test_bench.py",
    "tests/server/start/test_up.py",
    "tests/export/check/test_baselines.py",
    "tests/export/lower/test_processes.py",
    "tests/export/test_cli.py",
    "tests/server/ops/test_backup.py",
    "tests/edge_client/test_android_training.py",
    "tests/test_android_native.py",
    "tests/server/web/test_schema.py",
)
"""Files with tests of ten seconds and more: begun last, one would keep a process busy when the others have ended."""
SINGLY = ("tests/test_benchmark_scripts.py", "tests/test_boards.py")
"""Files whose tests share little, so that different processes may run them."""

SLOW = (
    "tests/browser/",
    "tests/edge_client/commands/doctor/",
    "tests/edge_client/commands/test_cli.py",
    "tests/edge_client/gradient/test_noise.py",
    "tests/edge_client/runtimes/",
    "tests/export/adapt/",
    "tests/export/check/test_baselines.py",
    "tests/export/dual/test_programs.py",
    "tests/export/graph/test_attending.py",
    "tests/export/graph/test_narrow.py",
    "tests/export/graph/test_segments.py",
    "tests/export/lower/",
    "tests/export/model/",
    "tests/export/test_architectures.py",
    "tests/export/test_cli.py",
    "tests/export/test_generation.py",
    "tests/export/test_pipeline.py",
    "tests/export/test_rows.py",
    "tests/server/attacks/",
    "tests/server/formats/test_gguf.py",
    "tests/server/simulation/compare/test_report.py",
    "tests/server/simulation/test_browser.py",
    "tests/server/storage/files/test_shared.py",
    "tests/server/test_logs.py",
    "tests/test_android",
    "tests/test_boards.py",
    "tests/test_deploy.py",
    "tests/test_gpu_memory.py",
    "tests/test_reference.py",
    "tests/test_site.py",
    "tests/test_warm.py",
    "tests/test_wrong_use.py",
)
"""What traces models, starts many processes or compiles, beside all that reads an exported bundle."""


def dealt(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Order tests for processes that begin with a part of the list each, of equal numbers.

    Each long file goes to the beginning of the next part in turn; the other tests fill the parts in their order.
    """
    long = sorted((item for item in items if item.nodeid.startswith(LONG)), key=_by_cost)
    rest = deque(item for item in items if not item.nodeid.startswith(LONG))
    parts: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for number, (_, group) in enumerate(groupby(long, _group)):
        parts[number % processes] += group
    for number, part in enumerate(parts):
        size = (len(items) - sum(map(len, parts[:number]))) // (processes - number)
        while rest and len(part) < size:
            part.append(rest.popleft())
    return [item for part in parts for item in part] + list(rest)


def _by_cost(item: pytest.Item) -> int:
    return next(place for place, name in enumerate(LONG) if item.nodeid.startswith(name))


def _group(item: pytest.Item) -> str:
    return item.nodeid if item.nodeid.startswith(SINGLY) else item.nodeid.partition("::")[0]


def is_quick(item: pytest.Item) -> bool:
    needs = getattr(item, "fixturenames", ())
    return not item.nodeid.startswith(SLOW) and "exporting" not in needs and "model_folder" not in needs

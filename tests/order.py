"""Which tests run first, and which are quick: by their place, as a mark at each of two thousand would be forgotten."""

import pytest

LONG = (
    "tests/server/demo/test_demo.py",
    "tests/server/start/test_up.py",
    "tests/server/web/test_schema.py",
    "tests/server/simulation/compute/",
    "tests/server/simulation/run/test_parity.py",
    "tests/server/simulation/run/test_resume.py",
    "tests/server/ops/test_backup.py",
    "tests/edge_client/commands/test_bench.py",
    "tests/export/adapt/test_computed.py",
    "tests/export/check/test_baselines.py",
    "tests/export/test_cli.py",
    "tests/export/test_generation.py",
    "tests/export/test_pipeline.py",
    "tests/export/lower/",
    "tests/test_android_native.py",
    "tests/test_benchmark_scripts.py",
    "tests/test_boards.py",
    "tests/test_guides.py",
)
"""Single tests of ten seconds and more: begun last, one would keep a process busy when the others have ended."""

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


def by_cost(item: pytest.Item) -> bool:
    """To sort by: long tests first, the others in their order."""
    return not item.nodeid.startswith(LONG)


def is_quick(item: pytest.Item) -> bool:
    needs = getattr(item, "fixturenames", ())
    return not item.nodeid.startswith(SLOW) and "exporting" not in needs and "model_folder" not in needs

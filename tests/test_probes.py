"""Test that probes note what coverage's own tracer sees."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = '''
"""A docstring."""
from __future__ import annotations

import contextlib
from dataclasses import dataclass


def twice(function):
    return function


@dataclass
class Point:
    """A docstring."""

    x: int
    """Where it is."""
    y: int = 0
    """And how far
    up."""

    def nothing(self): ...

    def unknown(self):
        ...

    @property
    def far(self) -> bool:
        "Another."
        return (
            self.x > 3
            or self.y > 3
        )

    def never(self):
        return self.x


@twice
@twice
def sort(values):
    kinds = []
    for value in values:
        match value:
            case int() if value > 100:
                kinds.append("large")
            case Point(x=1):
                kinds.append("one")
            case str():
                kinds.append(
                    "text"
                )
            case _:
                kinds.append("other")
    else:
        kinds.append("end")
    return kinds


def fail(how):
    try:
        if how == "key":
            raise KeyError(how)
        elif how == "value":
            raise ValueError(how)
        else:
            pass
    except (
        TypeError,
        KeyError,
    ):
        return 1
    except ValueError:
        return 2
    except ArithmeticError:
        return 3
    else:
        return 4
    finally:
        how = None


def numbers(count):
    global LAST
    while count:
        count -= 1
        if count == 2: continue
        with contextlib.suppress(ValueError):
            yield [
                each
                for each in range(count)
            ]
    LAST = count


async def later():
    return 5


sort([1, "a", Point(1)])
fail("value"), fail("key")
list(numbers(4))
Point(1).nothing()
Point(1).unknown()
if Point(1).far:
    LAST = 7
'''

COMPARING = """
import importlib, json, sys
from coverage import Coverage
from tests.probes import Probes

traced = Coverage(data_file=None, config_file=False, include=["*/program_of_tests.py"])
traced.start()
import program_of_tests
traced.stop()
path = program_of_tests.__file__
_, statements, _, missing, _ = traced.analysis2(path)
del sys.modules["program_of_tests"]
probes = Probes(["program_of_tests"])
probes.start()
import program_of_tests
assert program_of_tests.Point.__doc__ == "A docstring." and program_of_tests.Point.far.__doc__ == "Another."
print(json.dumps([sorted(set(statements) - set(missing)), [n for n in probes.lines(path) if n in statements], missing]))
"""


def test_lines_that_ran_are_those_that_a_tracer_sees(tmp_path):
    (tmp_path / "program_of_tests.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}){COMPARING}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    traced, noted, missing = json.loads(done.stdout)
    assert noted == traced
    assert len(missing) > 5


def test_no_tracer_runs_beside_the_notes(tmp_path):
    """Not even one that pytest-cov began before another: it would see every line of every library.

    In a process of xdist, as `make test` has several: what one alone counts is what they count together.
    """
    test = tmp_path / "test_traced.py"
    test.write_text("import sys\nimport edge_client.errors\ndef test(): assert sys.gettrace() is None\n")
    plugins = "-p", "tests.probes", "-p", "xdist", "-p", "pytest_cov"
    settings = tmp_path / "coveragerc"
    settings.write_text("[report]\ninclude = */edge_client/errors.py\n")  # to read all files would take half a minute
    measured = "--cov=edge_client", f"--cov-config={settings}"
    options = "-q", *plugins, "-c", os.devnull, "--rootdir", str(tmp_path), *measured
    own = os.environ | {
        "COVERAGE_FILE": str(tmp_path / "measured"),
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # others take seconds to load
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-n", "1", str(test)],
        capture_output=True, text=True, check=False, env=own, cwd=tmp_path,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    (counted,) = [line.split() for line in done.stdout.splitlines() if "edge_client/errors.py " in line]
    assert int(counted[1]) > int(counted[2]), "what ran is counted"

"""Commands that begin with the libraries loaded behave as those of a Python of their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.warm import python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each command has a Python of its own")
LOADED = "import sys; print('torch' in sys.modules)"


def run(*words, **options):
    return subprocess.run([python(), *words], capture_output=True, text=True, timeout=300, check=False, **options)


def test_words_files_folder_and_variables_are_the_commands_own(tmp_path):
    code = "import os, sys; print(sys.argv, input(), os.getcwd(), os.environ['OWN']); sys.exit(7)"
    done = run("-c", code, "a b", input="given\n", cwd=tmp_path, env=os.environ | {"OWN": "x"})
    assert (done.returncode, done.stdout, done.stderr) == (7, f"['-c', 'a b'] given {tmp_path} x\n", "")
    assert run("-c", LOADED).stdout == "True\n"


def test_scripts_and_modules_are_found_as_python_finds_them(tmp_path):
    (tmp_path / "beside.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    (tmp_path / "script.py").write_text("import beside\nprint(__name__, __file__)\n")
    assert run("-m", "beside", "x", cwd=tmp_path).stdout == "__main__ ['x']\n"
    script = tmp_path / "script.py"
    assert run(str(script), "x").stdout == f"beside ['x']\n__main__ {script}\n"


def test_how_it_ends_comes_back():
    assert run("-c", "raise SystemExit('why')").stderr == "why\n"
    failed = run("-c", "1 / 0")
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
    assert run("-c", "import os; os.kill(os.getpid(), 9)").returncode == -signal.SIGKILL
    code = "import time\ntry: print('on', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('stopped')"
    with subprocess.Popen([python(), "-c", code], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "on\n"
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=300)[0] == "stopped\n"
    assert running.returncode == 0


def test_it_ends_with_the_program_that_asked():
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    with subprocess.Popen([python(), "-c", code], stdout=subprocess.PIPE, text=True) as running:
        process = Path("/proc", running.stdout.readline().strip())
        running.kill()
    until = time.monotonic() + 300
    while process.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("words", [("-X", "utf8", "-c", LOADED), ("-c", LOADED, "join")])
def test_what_is_started_otherwise_has_a_python_of_its_own(words):
    assert run(*words).stdout == "False\n"


def test_so_has_what_libraries_would_have_read_otherwise():
    assert run("-c", LOADED, env=os.environ | {"PYTHONHASHSEED": "1"}).stdout == "False\n"


def test_commands_that_ran_in_this_process_change_nothing():
    assert run("-c", LOADED, env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}).stdout == "True\n"

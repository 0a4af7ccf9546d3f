import os
import pickle
import re
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, distribution, entry_points
from pathlib import Path

import pytest

import edge_client
from edge_client import RuntimeMissing, SpryError
from edge_client.commands import cli
from edge_client.distribution import NAME, install_command

# A distribution that adds commands, as anybody's could: the real discovery, loading and error handling are tested.
PLUGIN = '''
import time
import typer
from edge_client.commands.progress import Terminal
from edge_client.errors import BundleError

group = typer.Typer()

@group.callback()
def about():
    """A group of commands."""

@group.command()
def echo(word: str, times: int = typer.Option(1, min=1)):
    print(*[word] * times)

def ok():
    """A plain function."""
    print("fine")

def refuse():
    raise BundleError("no bundle at x:\\n give a folder that has a manifest.json")

def broken():
    raise RuntimeError("a defect")

def sleep():
    print("ready", flush=True)
    time.sleep(60)

def full():
    with open("/dev/full", "w") as file:
        file.write("x")

def lazy():
    import no_such_library.part

def work():
    with Terminal().shown() as progress, progress.stage("knead"):
        print("bread")

def leave():
    raise typer.Exit(7)
'''
COMMANDS = ("group", "ok", "refuse", "broken", "sleep", "full", "lazy", "work", "leave")


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "spry_plugin.py").write_text(PLUGIN)
    (folder / "spry_plugin_absent.py").write_text("import no_such_library\n")
    info = folder / "spry_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spry-plugin\nVersion: 1.0\n")
    lines = [f"{name} = spry_plugin:{name}" for name in COMMANDS] + ["absent = spry_plugin_absent:command"]
    (info / "entry_points.txt").write_text("\n".join(["[spry.commands]", *lines]) + "\n")
    return folder


@pytest.fixture
def spry(plugin):
    """Runs the command in a child process; `extra` says which extra the plugin's command needs."""

    def run(*args: str, extra: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(*args, extra=extra), capture_output=True, text=True, env=env, check=False)

    def command(*args: str, extra: str | None) -> list[str]:
        row = f"cli.SUBCOMMANDS[{args[0]!r}] = cli.Subcommand('', {extra!r})" if extra else ""
        return [sys.executable, "-c", f"import sys\nfrom edge_client.commands import cli\n{row}\ncli.main()", *args]

    env = os.environ | {"PYTHONPATH": str(plugin)}
    run.command, run.env = command, env
    return run


def installed_script() -> Path:
    return Path(sys.executable).with_name("spry")


def test_the_installed_script_shows_the_version():
    done = subprocess.run([installed_script(), "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"spry {edge_client.__version__}\n", "")


def test_help_lists_all_subcommands_with_their_lines(capsys):
    assert cli.run([]) == 0
    text = capsys.readouterr().out
    assert cli.run(["--help"]) == 0
    assert capsys.readouterr().out == text
    for name, (summary, _) in cli.SUBCOMMANDS.items():
        assert re.search(rf"^ +{name} +{re.escape(summary)}$", text, re.MULTILINE), name


def test_the_table_names_the_installed_commands_and_existing_extras():
    own = {entry.name for entry in entry_points(group="spry.commands") if entry.module.startswith(cli.OWN_PACKAGES)}
    assert own == cli.SUBCOMMANDS.keys()
    extras = set(distribution(NAME).metadata.get_all("Provides-Extra"))
    assert {row.extra for row in cli.SUBCOMMANDS.values() if row.extra} <= extras


def test_help_does_not_import_the_subcommands(spry):
    done = spry("--help")
    assert done.returncode == 0, done.stderr
    assert "absent" in done.stdout
    assert "Added by spry-plugin." in done.stdout


def test_functions_and_groups_run_as_subcommands(spry):
    assert spry("ok").stdout == "fine\n"
    assert spry("group", "echo", "a", "--times", "2").stdout == "a a\n"
    assert "spry group echo" in spry("group", "echo", "--help").stdout


def test_a_group_alone_shows_its_help(capsys):
    assert cli.run(["keys"]) == 0
    told = capsys.readouterr()
    assert "Make a key:" in told.out
    assert not told.err


def test_quiet_shows_results_without_progress(spry):
    assert "knead: done" in spry("work").stderr
    for args in (("work", "--quiet"), ("--quiet", "work")):
        done = spry(*args)
        assert (done.stdout, done.stderr) == ("bread\n", "")


def test_an_error_the_user_can_act_on_is_one_line(spry):
    done = spry("refuse")
    assert done.returncode == 2
    assert done.stderr == "error: no bundle at x: give a folder that has a manifest.json\n"
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["absent", "lazy"])
def test_a_missing_library_names_the_extra(spry, name):
    done = spry(name, extra="export")
    assert done.returncode == 2
    expected = f"spry {name} needs the extra 'export' (no_such_library is not installed): {install_command('export')}"
    assert done.stderr == f"error: {expected}\n"


def test_a_missing_library_of_a_command_without_an_extra_keeps_its_traceback(spry):
    done = spry("absent")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'no_such_library'" in done.stderr


def test_a_failed_import_of_our_own_is_not_blamed_on_an_extra():
    entry = EntryPoint("export", "export.cli:export", "spry.commands")
    assert cli.missing_extra(entry, ModuleNotFoundError("no module", name="export.nowhere")) is None
    assert cli.missing_extra(entry, ImportError("no name")) is None


def test_a_library_that_does_not_load_shows_why():
    entry = EntryPoint("export", "export.cli:export", "spry.commands")
    error = cli.missing_extra(entry, ImportError("undefined symbol", name="executorch.extension"))
    assert str(error) == f"spry export needs the extra 'export' (undefined symbol): {install_command('export')}"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["--nonsense"], "--nonsense"),
        (["group", "echo"], "Missing argument"),
        (["group", "echo", "a", "--times", "0"], "--times"),
        (["group", "echo", "a", "--times", "many"], "--times"),
    ],
)
def test_wrong_usage_is_one_line(spry, args, message):
    done = spry(*args)
    assert done.returncode == 2
    assert re.fullmatch(r"error: [^\n]* \(see `spry[^\n]* --help`\)\n", done.stderr), done.stderr
    assert message in done.stderr


def test_a_full_disk_is_one_line(spry):
    done = spry("full")
    assert (done.returncode, done.stderr) == (
        2,
        "error: No space left on device; free some space, or choose another place\n",
    )


def test_a_defect_keeps_its_traceback(spry):
    done = spry("broken")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "RuntimeError: a defect" in done.stderr


def test_a_command_chooses_its_exit_code(spry):
    assert spry("leave").returncode == 7


def test_ctrl_c_ends_without_a_traceback(spry):
    child = subprocess.Popen(
        spry.command("sleep", extra=None), env=spry.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=300)
    assert (child.returncode, errors) == (130, "")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("ex", {"export"}),
        ("export --ta", {"--task", "--target", "--target-modules"}),
        ("job cre", {"create"}),
        ("job create --max-h", set()),
        ("absent --an", set()),  # its library is not installed: that is told when the command runs
        ("gro", {"group"}),
        ("group echo --ti", {"--times"}),
    ],
)
def test_bash_completes_words(plugin, words, completed):
    script = f"""
    eval "$(spry --show-completion)"
    COMP_WORDS=(spry {words})
    COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    _spry_completion spry
    printf '%s\n' "${{COMPREPLY[@]}}"
    """
    path = f"{installed_script().parent}{os.pathsep}{os.environ['PATH']}"
    python_path = f"{plugin}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"PYTHONPATH": python_path, "PATH": path}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, set(done.stdout.split()), done.stderr) == (0, completed, "")


@pytest.mark.parametrize(("words", "needed"), [("spry ex", set()), ("spry export --ta", {"export.cli"})])
def test_completing_imports_no_more_than_the_command_that_is_named(words, needed):
    environment = os.environ | {
        "COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_SPRY_COMPLETE": "complete_bash",
    }  # fmt: skip
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr));"
    command = [sys.executable, "-c", f"{code} from edge_client.commands.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout
    assert set(done.stderr.split()) & {"torch", "transformers", "fastapi", "export.cli", "server.cli.job"} == needed


def test_errors_survive_the_way_back_from_a_worker_process():
    error = pickle.loads(pickle.dumps(RuntimeMissing("the ONNX runtime", "onnx", "onnxruntime is not installed")))
    assert isinstance(error, SpryError)
    assert (error.what, error.extra, error.reason) == ("the ONNX runtime", "onnx", "onnxruntime is not installed")
    assert str(error).endswith(install_command("onnx"))


def test_the_public_names_exist():
    assert all(hasattr(edge_client, name) for name in edge_client.__all__)

"""The bundle on disk: whole or not there at all."""

import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import pytest

from edge_client.bundle.folder import Bundle
from edge_client.data.templates import Template
from edge_client.data.turns import written
from edge_client.errors import MACHINE_ERRORS
from export.errors import ExportError
from export.write import pack
from tests import chats


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    process = multiprocessing.get_context("fork").Process(target=lambda: None)
    process.start()
    process.join()
    return process.pid


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def stage(out, name, error):
    with pack.staging(out) as folder:
        (folder / name).write_text("half")
        raise error


def test_a_folder_appears_when_it_is_whole(tmp_path):
    out = tmp_path / "below" / "bundle"
    with pack.staging(out) as folder:
        (folder / "file").write_text("content")
        assert not out.exists()
    assert (out / "file").read_text() == "content"
    assert names(out.parent) == ["bundle"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_nothing(tmp_path, error):
    with pytest.raises(error):
        stage(tmp_path / "bundle", "file", error)
    assert names(tmp_path) == []


def test_what_is_there_is_kept_until_the_new_one_is_whole(tmp_path):
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "old").write_text("old")
    with pytest.raises(ValueError, match="half way"):
        stage(out, "new", ValueError("half way"))
    assert names(out) == ["old"]
    with pack.staging(out) as folder:
        (folder / "new").write_text("new")
        assert names(out) == ["old"]
    assert names(out) == ["new"]
    assert names(tmp_path) == ["bundle"]


def test_what_is_there_returns_when_the_new_one_cannot_take_its_place(tmp_path):
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "old").write_text("old")
    with pytest.raises(FileNotFoundError), pack.staging(out) as folder:
        folder.rmdir()
    assert names(out) == ["old"]
    assert names(tmp_path) == ["bundle"]


def test_leftovers_of_ended_processes_are_removed(tmp_path, dead):
    for name in (f".bundle.partial-{dead}", f".bundle.partial-{os.getppid()}", f".bundle[1].partial-{dead}", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / ".bundle.partial-mine").write_text("nobody's process")
    with pack.staging(tmp_path / "bundle"):
        pass
    kept = ["mine", "bundle", ".bundle.partial-mine", f".bundle.partial-{os.getppid()}", f".bundle[1].partial-{dead}"]
    assert names(tmp_path) == sorted(kept)
    with pack.staging(tmp_path / "bundle[1]"):
        pass
    assert f".bundle[1].partial-{dead}" not in names(tmp_path)


def test_a_bundle_that_was_just_moved_away_returns(tmp_path, dead):
    """Killed between the two moves of a replacement."""
    (tmp_path / f".bundle.replaced-{dead}").mkdir()
    (tmp_path / f".bundle.replaced-{dead}" / "old").write_text("old")
    with pytest.raises(ValueError, match="stop"), pack.staging(tmp_path / "bundle"):
        raise ValueError("stop")
    assert names(tmp_path / "bundle") == ["old"]
    (tmp_path / f".bundle.replaced-{dead}").mkdir()
    with pack.staging(tmp_path / "bundle"):
        pass
    assert names(tmp_path) == ["bundle"]


class Stopping:
    """Progress that tells when a stage begins, and then waits for what comes."""

    def __init__(self, stage: str, pipe) -> None:
        self.stage_to_stop_at = stage
        self.pipe = pipe

    @contextmanager
    def stage(self, name, steps=0):
        if name == self.stage_to_stop_at:
            self.pipe.send(name)
            time.sleep(60)
        yield

    def advance(self, what):
        pass


def test_a_killed_export_leaves_what_was_there(exporting, tmp_path):
    out = tmp_path / "bundle"
    exporting(out, labels=("a", "b"), verify="none", cuts=1)
    receive, send = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=exporting, args=(out, Stopping("verify", send)), kwargs={"overwrite": True, "cuts": 1}
    )
    child.start()
    assert receive.poll(60)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    left = f".bundle.partial-{child.pid}"
    assert names(tmp_path) == [left, "bundle"]
    assert Bundle.open(out).manifest.model.labels == ("a", "b")
    exporting(out, overwrite=True, verify="none", cuts=1)
    assert names(tmp_path) == ["bundle"]
    assert len(Bundle.open(out).manifest.model.labels) == 3


# --- space -----------------------------------------------------------------------------------------------------------


def test_too_little_space_is_refused_before_the_work(tmp_path):
    pack.require_space(tmp_path / "a" / "b", 1000)
    with pytest.raises(ExportError, match=r"MB free and the bundle needs about 1000000000000 MB; free some space"):
        pack.require_space(tmp_path / "a" / "b", 10**18)
    assert names(tmp_path) == []


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_of_the_cache_is_not_stored_twice(tmp_path):
    (tmp_path / "source").write_bytes(b"weights")
    pack.link_file(tmp_path / "source", tmp_path / "bundle" / "deep" / "target")
    assert (tmp_path / "bundle" / "deep" / "target").samefile(tmp_path / "source")


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a second file system")
def test_a_file_of_another_file_system_is_copied(tmp_path, tmp_path_factory):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        (Path(other) / "source").write_bytes(b"weights")
        pack.link_file(Path(other) / "source", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == b"weights"


def test_files_are_listed_with_their_hashes_but_the_manifest(tmp_path):
    pack.add_file(tmp_path, "b/deep.bin", b"xyz")
    pack.add_file(tmp_path, "a.bin", b"")
    pack.add_file(tmp_path, "manifest.json", b"{}")
    listed = pack.list_files(tmp_path)
    assert [(file.path, file.bytes) for file in listed] == [("a.bin", 0), ("b/deep.bin", 3)]
    assert listed[1].sha256 == "3608bca1e44ea6c4d268eb6db02260269892c0b42b86bbf1e77a6fa16c3c9282"


class Kind(str, Enum):
    ONE = "one"


def test_configurations_become_plain_json_in_a_fixed_order():
    given = {"b": {"z", "a", "m"}, "a": (1, 2.5, None, True), 3: Kind.ONE, "c": {"y": frozenset({"q"}), "x": object}}
    found = pack.plain(given)
    assert list(found) == ["3", "a", "b", "c"]
    assert found["b"] == ["a", "m", "z"]
    assert found["a"] == [1, 2.5, None, True]
    assert found["3"] == "one"
    assert type(found["3"]) is str
    assert list(found["c"]) == ["x", "y"]
    assert json.loads(json.dumps(found)) == found


def test_a_full_disk_is_one_line():
    """`spry` turns the machine's own errors into a line; /dev/full gives a real one."""
    with pytest.raises(OSError, match="No space left") as caught:
        pack.add_file(Path("/dev"), "full", b"content")
    assert caught.value.errno in MACHINE_ERRORS


def test_the_tokenizer_pads_and_cuts_nothing(bundle):
    """The client sets both itself."""
    found = json.loads((bundle / "tokenizer.json").read_text())
    assert (found["padding"], found["truncation"]) == (None, None)


def test_the_chat_template_comes_with_a_language_model(talker, bundle, talker_folder):
    from transformers import AutoTokenizer

    opened = Bundle.open(talker)
    theirs = AutoTokenizer.from_pretrained(talker_folder)
    messages = chats.conversation(random.Random(), system=True)
    assert opened.manifest.chat_template in {file.path for file in opened.manifest.files}
    assert Template.of(opened).render(messages) == theirs.apply_chat_template(messages, tokenize=False)
    assert Template.of(opened).end == theirs.eos_token
    assert opened.manifest.turns is not None
    assert written(opened.manifest.turns, messages) == theirs.apply_chat_template(messages, tokenize=False)
    plain = Bundle.open(bundle).manifest
    assert (plain.chat_template, plain.turns) == (None, None)

import json
import shutil

import msgspec
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.errors import WrongResults
from edge_client.runtimes.onnx import OnnxRuntime
from edge_client.store.tried import TRIED, try_once


class Counting(OnnxRuntime):
    runs = 0

    def run(self, program, inputs):
        self.runs += 1
        return super().run(program, inputs)


@pytest.fixture
def folder(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "bundle")


def test_a_runtime_is_tried_once_for_a_bundle_and_a_version(folder):
    manifest = manifests.read(folder / manifests.FILE_NAME)
    with Counting(folder, threads=1) as runtime:
        try_once(folder, manifest, "onnx", runtime)
        assert runtime.runs == len(manifest.runtimes["onnx"].trials)
        try_once(folder, manifest, "onnx", runtime)
        assert runtime.runs == len(manifest.runtimes["onnx"].trials)
        kept = json.loads((folder / TRIED).read_text())
        assert kept["onnx"].startswith("onnxruntime of ")
        (folder / TRIED).write_text(json.dumps({"onnx": "onnxruntime of another day"}))
        try_once(folder, manifest, "onnx", runtime)
        assert runtime.runs == 2 * len(manifest.runtimes["onnx"].trials)


def test_a_failure_is_not_remembered(folder):
    manifest = manifests.read(folder / manifests.FILE_NAME)
    spec = manifest.runtimes["onnx"]
    outcomes = tuple(msgspec.structs.replace(one, size=one.size + 1) for one in spec.trials[0].outcomes)
    wrong = msgspec.structs.replace(spec, trials=(msgspec.structs.replace(spec.trials[0], outcomes=outcomes),))
    changed = msgspec.structs.replace(manifest, runtimes={"onnx": wrong})
    with OnnxRuntime(folder, threads=1) as runtime:
        for _ in range(2):
            with pytest.raises(WrongResults):
                try_once(folder, changed, "onnx", runtime)
    assert not (folder / TRIED).exists()

"""Whole exports of a tiny model: what the bundle holds, and that it comes out the same again."""

import filecmp
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FILE_NAME
from edge_client.commands.progress import Silent
from edge_client.runtimes.processors import exact, this_processor
from export.errors import ExportError
from tests.benchmarks import script
from tests.conftest import LABELS


def test_the_manifest_describes_the_model(bundle, model_folder):
    manifest = Bundle.open(bundle).manifest
    base = transformers.AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=len(LABELS))
    assert manifest.model.name == "tiny-bert"
    assert manifest.model.architecture == "BertForSequenceClassification"
    assert manifest.model.labels == LABELS
    assert manifest.model.parameters == sum(parameter.numel() for parameter in base.parameters())
    assert manifest.adapter.config["base_model_name_or_path"] == "tiny-bert"
    assert [segment.name for segment in manifest.segments] == ["embed", "block.0", "block.1", "head"]
    assert manifest.shapes == ((2, 8), (1, 8))
    assert manifest.directions == (1, 2)
    units = [unit.name for unit in manifest.units]
    assert units == [f"bert.encoder.layer.{i}.attention.self.{part}" for i in (0, 1) for part in ("query", "value")]
    assert [unit.segments for unit in manifest.units] == [("block.0",)] * 2 + [("block.1",)] * 2
    assert all(unit.size == 64 for unit in manifest.units)


def test_programs_carry_what_they_cost(bundle):
    spec = Bundle.open(bundle).manifest.runtimes["onnx"]
    assert set(spec.versions) >= {"onnx"}
    plain = {p.segment: p for p in spec.programs if p.kind == "plain" and p.batch == 2}
    dual = {p.segment: p for p in spec.programs if p.kind == "dual" and (p.batch, p.directions) == (2, 1)}
    assert plain["block.0"].flops > 2 * 2 * 8 * 4 * 32 * 32
    assert dual["block.1"].flops > 1.4 * plain["block.1"].flops
    assert all(0 < p.peak_bytes < 100_000_000 for p in spec.programs)
    assert all(p.load_bytes < 5_000_000 for p in spec.programs), "the library itself is not a program's memory"


def test_the_report_is_stored(bundle):
    checks = {check.what: check for check in Bundle.open(bundle).manifest.verification}
    assert all(check.passed for check in checks.values())
    assert len(checks) == 4
    assert all(0 <= check.value < check.bound for check in checks.values())


# --- the same again --------------------------------------------------------------------------------------------------


def same(first: Path, second: Path) -> bool:
    compared = filecmp.dircmp(first, second)
    names = [path.relative_to(first) for path in first.rglob("*") if path.is_file()]
    _, different, missing = filecmp.cmpfiles(first, second, names, shallow=False)
    return not (different or missing or compared.left_only or compared.right_only)


def test_the_same_options_give_the_same_bytes(exporting, bundle, model_folder, tmp_path):
    """Even where the model lies in another folder."""
    shutil.copytree(model_folder, tmp_path / "tiny-bert")
    options = {"batches": (2, 1), "directions": (1, 2), "measure": True}
    again = exporting(tmp_path / "bundle", source=str(tmp_path / "tiny-bert"), **options)
    assert same(bundle, again)


class Watched:
    """Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.steps: list[str] = []

    def stage(self, name, steps=0):
        from contextlib import nullcontext

        self.stages.append(name)
        return nullcontext()

    def advance(self, what):
        self.steps.append(what)


def test_unchanged_parts_come_from_the_cache(exporting, tmp_path):
    def lowered(out, **options):
        watched = Watched()
        folder = exporting(tmp_path / out, watched, cache=tmp_path / "cache", verify="none", **options)
        assert watched.stages == ["load", "adapt", "capture and differentiate", "lower"]
        assert Bundle.open(folder).manifest.verification == ()
        return folder, [step for step in watched.steps if step.startswith("onnx")]

    first, steps = lowered("first")
    assert steps == ["onnx embed", "onnx block.0", "onnx block.1", "onnx head"]
    second, steps = lowered("second")
    assert steps == [f"onnx {name} (cached)" for name in ("embed", "block.0", "block.1", "head")]
    assert same(first, second)
    _, steps = lowered("third", labels=("a", "b"))
    assert {step for step in steps if "cached" not in step} == {"onnx head"}


def test_a_large_model_gives_the_same_programs_from_weights_in_files(exporting, tmp_path):
    """Of a model whose blocks end in sums; a norm at their end lies in the next segment where all are verified."""
    config = transformers.LlamaConfig(vocab_size=100, hidden_size=64, num_hidden_layers=4, num_attention_heads=2,
                                      intermediate_size=64, initializer_range=0.1, pad_token_id=0)  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaModel(config).bfloat16().save_pretrained(tmp_path / "half")
    options = {"source": str(tmp_path / "half"), "precision": "int8", "processor": "avx2", "cache": None}
    options |= {"verify": "full"}  # which says the same of both
    whole, few = exporting(tmp_path / "whole", **options), exporting(tmp_path / "few", low_memory=True, **options)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(few) for path in few.rglob("*") if path.is_file())
    assert [file for file in files if (whole / file).read_bytes() != (few / file).read_bytes()] == [Path(FILE_NAME)]
    of_whole, of_few = (Bundle.open(folder).manifest for folder in (whole, few))
    told = [(check.what, check.value) for check in of_whole.verification]
    assert [check.what for check in of_few.verification] == [f"{what}, of 3 blocks" for what, _ in told]
    assert [check.value for check in of_few.verification] != [value for _, value in told], "they are another model"
    assert of_few.runtimes == of_whole.runtimes
    assert of_few.units == of_whole.units
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few", "half", "whole"]


def test_a_copy_of_the_weights_that_has_no_place_is_refused(exporting, tmp_path):
    (tmp_path / "huge").mkdir()
    transformers.BertConfig(num_hidden_layers=1).save_pretrained(tmp_path / "huge")
    size = 2 * 10**8
    weights = {
        f"w{number}": {"dtype": "BF16", "shape": [10**4, 10**4], "data_offsets": [number * size, (number + 1) * size]}
        for number in range(10**4)  # each of them fits the memory
    }
    header = json.dumps(weights).encode()
    (tmp_path / "huge" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ExportError, match="a copy of the weights in float32 needs about 4000000 MB; free some"):
        exporting(tmp_path / "out", source=str(tmp_path / "huge"))


EXPORT = """
import sys
from pathlib import Path
from edge_client.memory import reset_peak, resident
from export.options import ExportOptions
from export.pipeline import export_bundle
from tests.adapters import everywhere
source, out, low = sys.argv[1:]
before = resident()
reset_peak()
export_bundle(ExportOptions(source, Path(out), task="causal-lm", labels=(), precision="int4", batches=(1,),
    lengths=(8,), adapter=everywhere(), low_memory=low == "low", verify="none" if low == "low" else "auto",
    measure=False, workers=1))
print(resident("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkpoint of sixteen blocks, and its bytes in float32."""
    folder, layers = tmp_path_factory.mktemp("large") / "model", 16
    shape = {"hidden_size": 768, "intermediate_size": 2048, "layers": layers, "heads": 4, "vocabulary": 2000}
    block, embedding = script("large").write_model(folder, shape)
    return folder, layers * block + 2 * embedding


@pytest.mark.parametrize("low", ["usual", "low"])
def test_an_export_holds_a_block_not_a_model(large, low, tmp_path):
    """With low memory alone, what is verified is a model of three blocks."""
    folder, whole = large
    command = [sys.executable, "-c", EXPORT, str(folder), str(tmp_path / low), low]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout.split()[-1]) < 0.6 * whole


def test_int8_is_for_the_processor_that_is_named_or_measured(exporting, tmp_path):
    quick = {"precision": "int8", "verify": "none", "cuts": 1}
    made_for = {
        asked: Bundle.open(exporting(tmp_path / asked, processor=asked, **quick)).manifest.runtimes["onnx"].processor
        for asked in ("auto", "avx2", "amx")
    }
    assert exact(made_for.pop("auto"), this_processor())
    assert made_for == {"avx2": "avx2", "amx": "amx"}
    files = {name: (tmp_path / name / "onnx/block.0/weights.bin").read_bytes() for name in made_for}
    assert files["avx2"] != files["amx"]


class Stages(Silent):
    def __init__(self) -> None:
        self.told = []

    def stage(self, name: str, steps: int = 0):
        self.told.append(name)
        return super().stage(name, steps)


def test_a_model_that_one_digit_is_too_coarse_for_gets_two_where_it_needs_them(exporting, tmp_path):
    """Large weights at random make a product's rounding large at the end of six blocks."""
    config = transformers.BertConfig(vocab_size=100, hidden_size=64, num_hidden_layers=6, num_attention_heads=2,
                                     intermediate_size=64, initializer_range=0.2)  # fmt: skip
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(tmp_path / "model")
    stages = Stages()
    options = {"source": str(tmp_path / "model"), "precision": "int8", "cache": None}
    manifest = Bundle.open(exporting(tmp_path / "out", progress=stages, **options)).manifest
    assert [name for name in stages.told if name.startswith("lower")] == ["lower", "lower, in two digits"]
    (jvp,) = [check for check in manifest.verification if check.what.startswith("jvp")]
    assert 0 < jvp.value < jvp.bound
    (fine,) = [check.value for check in manifest.verification if check.what == "segments in two digits, of 8"]
    programs = [program for program in manifest.runtimes["onnx"].programs if program.kind == "plain"]
    files = {program.segment: (tmp_path / "out" / program.file).read_bytes() for program in programs}
    assert fine == sum(b"DequantizeLinear" in content for content in files.values()) > 0
    assert not list(tmp_path.glob(".out*"))


def test_derivatives_of_a_deep_model_keep_their_bound_in_int8(exporting, tmp_path):
    """Each block rounds what enters its products; adapters stand in all of them."""
    config = {"num_hidden_layers": 16, "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4}
    transformers.BertConfig(vocab_size=500, **config).save_pretrained(tmp_path / "deep")
    options = {"source": str(tmp_path / "deep"), "random_weights": True, "precision": "int8", "lengths": (16,)}
    manifest = Bundle.open(exporting(tmp_path / "bundle", **options)).manifest
    (found,) = [check for check in manifest.verification if check.what.startswith("jvp")]
    assert len(manifest.segments) == 18
    assert 0 < found.value < found.bound == 0.05


def test_what_is_too_long_for_the_model_is_refused(exporting, tmp_path):
    with pytest.raises(ExportError, match="the model has 32 positions, got --seq 64"):
        exporting(tmp_path / "out", lengths=(8, 64))
    assert list(tmp_path.iterdir()) == []

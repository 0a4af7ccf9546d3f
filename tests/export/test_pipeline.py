"""Whole exports of a tiny model: what the bundle computes, what it holds, and that it comes out the same again."""

import filecmp
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch.func import functional_call, jvp

from edge_client.adapters import folded
from edge_client.bundle import Bundle
from edge_client.runtimes import open_runtime
from edge_client.steps import Stepper
from export.errors import ExportError
from export.options import METHODS, AdapterOptions
from export.tasks import TASKS
from tests.conftest import LABELS

CLOSE = {"rtol": 2e-4, "atol": 2e-6}
BATCH, LENGTH = 2, 8


class Trained:
    """A bundle with its trainable tensors moved, and the model that PEFT makes of the same tensors."""

    def __init__(self, folder: Path, base: Path, scratch: Path, batch: int = BATCH, seed: int = 0) -> None:
        self.folder, self.batch = folder, batch
        self.bundle = Bundle.open(folder)
        self.manifest = self.bundle.manifest
        generator = np.random.default_rng(seed)
        initial = self.bundle.initial_adapter()
        self.weights = {
            name: (initial[name] + 0.1 * generator.standard_normal(initial[name].shape)).astype(np.float32)
            for name in sorted(self.trained)
        }
        self.tokens, self.labels = self._inputs(generator)
        self.model = self._peft_model(base, scratch)

    def _inputs(self, generator):
        tokenizer = self.bundle.tokenizer()
        texts = ["the ice on the lake", "is it a train?"][: self.batch]
        ids = np.full((self.batch, LENGTH), self.manifest.pad_token_id)
        mask = np.zeros_like(ids)
        for row, encoded in enumerate(tokenizer.encode_batch(texts)):
            count = min(len(encoded.ids), LENGTH)
            ids[row, :count], mask[row, :count] = encoded.ids[:count], 1
        tokens = {"input_ids": ids, "attention_mask": mask, "token_type_ids": (np.arange(LENGTH) > 3) * mask}
        if self.manifest.model.task == "seq-cls":
            return tokens, generator.integers(0, len(self.manifest.model.labels), self.batch)
        if self.manifest.model.task == "qa":
            return tokens, np.sort(generator.integers(0, 4, (self.batch, 2)), 1)
        return tokens, np.where(mask == 1, ids, -100)

    def _peft_model(self, base: Path, scratch: Path) -> PeftModel:
        """What a user would do with an adapter file under the bundle's keys."""
        adapter = scratch / "adapter"
        shutil.copytree(self.folder / "adapter", adapter)
        saved = load_file(adapter / "adapter_model.safetensors")
        changed = {name: torch.tensor(value) for name, value in self.weights.items()}
        assert changed.keys() <= saved.keys()
        assert all((changed[name] != saved[name]).any() for name in changed)
        whole = folded({name: value.numpy() for name, value in {**saved, **changed}.items()})
        tensors = {name: torch.tensor(value) for name, value in whole.items()}
        save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
        task = TASKS[self.manifest.model.task]
        more = {"num_labels": len(LABELS)} if task.name == "seq-cls" else {}
        factory = getattr(transformers, task.model_class)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = factory.from_pretrained(base, attn_implementation="eager", **more)
            return PeftModel.from_pretrained(model, adapter).eval()

    def losses(self, parameters=None) -> torch.Tensor:
        tokens = {name: torch.tensor(value) for name, value in self.tokens.items()}
        output = functional_call(self.model, parameters or {}, (), tokens)
        if self.manifest.model.task == "qa":
            logits = torch.stack([output.start_logits, output.end_logits], -1)
        else:
            logits = output.logits
        self.logits = logits.detach()
        labels = torch.tensor(self.labels)
        return TASKS[self.manifest.model.task].losses(logits, labels, tokens["attention_mask"])

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The model's trainable tensors under the bundle's keys."""
        by_key = {}
        for name, _ in self.model.named_parameters():
            key = name.replace(".default", "").replace(".modules_to_save", "").replace(".base_layer", "")
            if key in self.trained and ".original_module." not in name:
                by_key[key] = name
        assert by_key.keys() == self.trained
        return by_key

    @property
    def trained(self) -> set[str]:
        units = {parameter.name for unit in self.manifest.units for parameter in unit.parameters}
        return units | {parameter.name for parameter in self.manifest.head}

    def jvp(self, along: dict[str, np.ndarray]) -> np.ndarray:
        """The derivative of each example's loss along its own directions, one example at a time."""
        names, own = self.parameters, dict(self.model.named_parameters())
        found = np.zeros(self.batch, np.float32)
        for row in range(self.batch if along else 0):
            primal = {names[key]: own[names[key]].detach() for key in along}
            tangent = {names[key]: torch.tensor(value[row]) for key, value in along.items()}
            found[row] = jvp(self.losses, (primal,), (tangent,))[1][row].detach()
        return found

    def gradient(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        names, own = self.parameters, dict(self.model.named_parameters())
        leaves = [own[names[key]].requires_grad_() for key in sorted(self.trained)]
        with torch.enable_grad():
            loss = (self.losses() * torch.tensor(weight)).sum()
            gradients = torch.autograd.grad(loss, leaves)
        return {key: gradient.numpy() for key, gradient in zip(sorted(self.trained), gradients, strict=True)}

    def stepper(self, runtime, count=1) -> Stepper:
        return Stepper(self.manifest, runtime, "onnx", self.batch, LENGTH, count)

    def directions(self, first: int, count: int, *, head: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
        """Directions for everything at or after a segment, K outermost."""
        names = [segment.name for segment in self.manifest.segments]
        units = [unit for unit in self.manifest.units if names.index(unit.segments[0]) >= first]
        parameters = [*(p for unit in units for p in unit.parameters), *(self.manifest.head if head else ())]
        generator = np.random.default_rng(seed)
        rows = count * self.batch
        return {p.name: generator.standard_normal((rows, *p.shape), np.float32) for p in parameters}


@pytest.fixture(scope="module")
def trained(bundle, model_folder, tmp_path_factory):
    return Trained(bundle, model_folder, tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def runtime(bundle):
    with open_runtime("onnx", bundle, threads=1) as opened:
        yield opened


# --- what the bundle computes ----------------------------------------------------------------------------------------


def test_forward_is_the_models(trained, runtime):
    found = trained.stepper(runtime).forward(trained.tokens, trained.labels, trained.weights)
    np.testing.assert_allclose(found.loss, trained.losses().detach(), **CLOSE)
    np.testing.assert_allclose(found.logits, trained.logits, **CLOSE)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("cut", ["block.0", "block.1", "head"])
def test_a_step_from_every_cut(trained, runtime, cut, count):
    stepper = trained.stepper(runtime, count)
    first = stepper.chain.position(cut)
    along = trained.directions(first, count)
    shares = np.array([0.25, 0.75], np.float32)
    given = trained.tokens, trained.labels, trained.weights, along, cut, shares
    step = stepper.dual(*given)
    assert step.jvp.shape == (count, BATCH)
    for k in range(count):
        expected = trained.jvp({name: value[k * BATCH : (k + 1) * BATCH] for name, value in along.items()})
        np.testing.assert_allclose(step.jvp[k], expected, **CLOSE)
    gradient = trained.gradient(shares)
    assert step.gradients.keys() == {parameter.name for parameter in trained.manifest.head}
    for name, value in step.gradients.items():
        np.testing.assert_allclose(value, gradient[name], **CLOSE)

    hidden = stepper.prefix(trained.tokens, trained.weights, cut)
    stepper.release_prefix(cut)
    again = stepper.suffix(hidden, *given)
    np.testing.assert_array_equal(again.jvp, step.jvp)
    np.testing.assert_array_equal(again.loss, step.loss)


@pytest.mark.parametrize("cut", ["block.0", "block.1", "head"])
def test_a_step_of_scalars_from_every_cut(trained, runtime, cut):
    stepper = trained.stepper(runtime)
    along = trained.directions(stepper.chain.position(cut), 1, head=True)
    found = stepper.scalars(trained.tokens, trained.labels, trained.weights, along, cut)
    head = {parameter.name for parameter in trained.manifest.head}
    units = {name: value for name, value in along.items() if name not in head}
    np.testing.assert_allclose(found.jvp[0], trained.jvp(units), **CLOSE)
    np.testing.assert_allclose(found.head_jvp[0], trained.jvp({name: along[name] for name in head}), **CLOSE)


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("cut", ["block.0", "block.1", "head"])
def test_the_exact_gradient_from_every_cut(trained, runtime, cut, low_memory):
    stepper = trained.stepper(runtime)
    shares = np.array([0.4, 0.6], np.float32)
    given = trained.tokens, trained.labels, trained.weights, cut, shares
    found = stepper.exact(*given, low_memory=low_memory)
    expected = trained.gradient(shares)
    later = trained.directions(stepper.chain.position(cut), 1, head=True)
    assert found.gradients.keys() == later.keys()
    for name, value in found.gradients.items():
        np.testing.assert_allclose(value, expected[name], **CLOSE)


def test_the_other_shape(bundle, model_folder, runtime, tmp_path):
    single = Trained(bundle, model_folder, tmp_path, batch=1)
    found = single.stepper(runtime).forward(single.tokens, single.labels, single.weights)
    np.testing.assert_allclose(found.loss, single.losses().detach(), **CLOSE)
    along = single.directions(1, 2)
    step = single.stepper(runtime, 2).dual(single.tokens, single.labels, single.weights, along, "block.0")
    expected = single.jvp({name: value[1:] for name, value in along.items()})
    np.testing.assert_allclose(step.jvp[1], expected, **CLOSE)


@pytest.mark.parametrize("method", METHODS[1:])
def test_every_adapter_loads_with_peft(exporting, model_folder, tmp_path, method):
    """Keys, shapes and configuration are PEFT's own: a server's result is an ordinary adapter folder."""
    desk = tmp_path / "desk.jsonl"
    desk.write_text("".join(f'{{"text": "the lake is {label}", "label": "{label}"}}\n' for label in LABELS))
    examples = str(desk) if method == "pairs" else ""
    folder = exporting(adapter=AdapterOptions(method=method, rank=2, dimension=3, examples=examples), cuts=1)
    trained = Trained(folder, model_folder, tmp_path)
    assert trained.manifest.adapter.method == method
    assert bool(trained.manifest.units) == (method != "classifier")
    with open_runtime("onnx", folder, threads=1) as opened:
        found = trained.stepper(opened).forward(trained.tokens, trained.labels, trained.weights)
    np.testing.assert_allclose(found.loss, trained.losses().detach(), **CLOSE)
    np.testing.assert_allclose(found.logits, trained.logits, **CLOSE)


def test_spans(exporting, model_folder, tmp_path):
    folder = exporting(task="qa", cuts=1)
    trained = Trained(folder, model_folder, tmp_path)
    assert trained.manifest.model.labels == ()
    chain = [(segment.name, segment.first_block, segment.last_block) for segment in trained.manifest.segments]
    assert chain[1:-1] == [("block.0", 0, 2)], "with one cut all blocks make one segment"
    assert {unit.segments for unit in trained.manifest.units} == {("block.0",)}
    with open_runtime("onnx", folder, threads=1) as opened:
        stepper = trained.stepper(opened)
        found = stepper.forward(trained.tokens, trained.labels, trained.weights)
        np.testing.assert_allclose(found.loss, trained.losses().detach(), **CLOSE)
        assert found.logits.shape == (BATCH, LENGTH, 2)
        along = trained.directions(1, 1)
        step = stepper.dual(trained.tokens, trained.labels, trained.weights, along, 1)
        np.testing.assert_allclose(step.jvp[0], trained.jvp(along), **CLOSE)


def test_language_models_have_no_head(exporting, tmp_path):
    """A whole checkpoint of GPT-2: its task layer is the model's own and stays frozen."""
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, n_positions=32, vocab_size=90, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "tiny-gpt2")
    folder = exporting(source=str(tmp_path / "tiny-gpt2"), task="causal-lm", cuts=1)
    bundle = Bundle.open(folder)
    assert (bundle.manifest.head, bundle.manifest.tokenizer) == ((), None)
    assert bundle.manifest.inputs == ("input_ids", "attention_mask")
    assert all(check.passed for check in bundle.manifest.verification)
    assert len(bundle.manifest.units) == 2  # GPT-2 projects queries, keys and values in one layer


@pytest.mark.parametrize(("precision", "rough"), [("int8", 0.1), ("int4", 0.6)])
def test_quantized(exporting, bundle, model_folder, tmp_path, precision, rough):
    """Near the float model; how near the quantized one is stands in the report that the export checks."""
    folder = exporting(precision=precision, directions=(1, 2))
    trained = Trained(folder, model_folder, tmp_path)
    spec = trained.manifest.runtimes["onnx"]
    assert spec.precision == precision
    assert spec.weights_bytes < Bundle.open(bundle).manifest.runtimes["onnx"].weights_bytes
    found, expected = [], []
    with open_runtime("onnx", folder, threads=1) as opened:
        stepper = trained.stepper(opened, 2)
        for seed in range(8):
            along = trained.directions(1, 2, seed=seed)
            step = stepper.dual(trained.tokens, trained.labels, trained.weights, along, 1)
            found.append(step.jvp)
            expected += [trained.jvp({n: v[k * BATCH : (k + 1) * BATCH] for n, v in along.items()}) for k in range(2)]
    error = np.concatenate(found) - expected
    assert np.linalg.norm(error) < rough * np.linalg.norm(expected)
    np.testing.assert_allclose(step.loss, trained.losses().detach(), rtol=rough)


# --- what the bundle holds -------------------------------------------------------------------------------------------


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
    options = {"batches": (2, 1), "directions": (1, 2), "measure": True, "archive": True}
    again = exporting(tmp_path / "bundle", source=str(tmp_path / "tiny-bert"), **options)
    assert same(bundle, again)
    assert bundle.with_name("bundle.zip").read_bytes() == again.with_name("bundle.zip").read_bytes()


def test_the_archive_opens(bundle):
    with Bundle.open(bundle.with_name("bundle.zip")) as opened:
        assert opened.manifest == Bundle.open(bundle).manifest


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
        folder = exporting(tmp_path / out, watched, cache=tmp_path / "cache", verify_directions=0, **options)
        stages = ["load", "adapt", "capture and differentiate", "lower", "archive"]
        assert watched.stages == (stages if options.get("archive") else stages[:-1])
        assert Bundle.open(folder).manifest.verification == ()
        return folder, [step for step in watched.steps if step.startswith("onnx")]

    first, steps = lowered("first", archive=True)
    assert steps == ["onnx embed", "onnx block.0", "onnx block.1", "onnx head"]
    second, steps = lowered("second")
    assert steps == [f"onnx {name} (cached)" for name in ("embed", "block.0", "block.1", "head")]
    assert same(first, second)
    _, steps = lowered("third", labels=("a", "b"))
    assert {step for step in steps if "cached" not in step} == {"onnx head"}

    for file in (tmp_path / "cache").rglob("*.onnx"):  # replaced, not written to: the bundles share these files
        damaged = file.read_bytes()[:-1]
        file.unlink()
        file.write_bytes(damaged)
    fourth, steps = lowered("fourth")
    assert not any("cached" in step for step in steps)
    assert same(first, fourth)


def test_what_is_too_long_for_the_model_is_refused(exporting, tmp_path):
    with pytest.raises(ExportError, match="the model has 32 positions, got --seq 64"):
        exporting(tmp_path / "out", lengths=(8, 64))
    assert list(tmp_path.iterdir()) == []

"""Verification finds what is wrong: programs, weights, derivatives, each under its own line."""

import math
import shutil
from types import SimpleNamespace

import msgspec
import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import IGNORED, Check
from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.adapted import Adapted
from export.adapt.wrapping import adapt
from export.check.reference import Reference
from export.check.verify import Truth, _line, is_far, make_sample, refuse_failures, verify
from export.errors import ExportError
from export.model.loading import load
from export.model.samples import SENTENCES, sample_inputs
from export.options import ExportOptions
from export.tasks.registry import MODEL_TASKS
from tests.adapters import everywhere
from tests.conftest import LABELS
from tests.export.models import tiny

LOSS = "loss, relative error"
GRADIENT = "exact gradient, relative error against autograd"
JVP = "jvp, RMS error over 2 directions against torch.func.jvp"
SLOPE = "torch.func.jvp against finite differences"
MOVED = "directions at bottlenecks in weights, relative error"


class Verified:
    """A bundle beside the model it was made of."""

    def __init__(self, folder, model_folder, **options):
        self.folder = folder
        self.manifest = Bundle.open(folder).manifest
        options = ExportOptions(str(model_folder), folder, batches=(2,), lengths=(8,), **options)
        self.loaded = load(options.source, MODEL_TASKS[options.task], LABELS)
        self.adapted = adapt(self.loaded, options.adapter, options.seed)
        self.sample = make_sample(self.loaded, self.adapted, self.manifest, 2, 0)

    def reference(self, **replaced):
        return Reference(self.adapted, self.loaded.task, replaced)

    def checks(self, folder=None, reference=None):
        right = Truth(self.reference(), self.sample)
        truth = Truth(reference, self.sample) if reference else right
        found = verify(folder or self.folder, self.manifest, "onnx", truth, right)
        return {check.what: check for check in found}


@pytest.fixture(scope="module")
def verified(bundle, model_folder):
    return Verified(bundle, model_folder, adapter=everywhere())


def failed(checks):
    return {what for what, check in checks.items() if not check.passed}


def test_a_right_bundle_passes(verified):
    checks = verified.checks()
    assert list(checks) == [LOSS, GRADIENT, JVP, SLOPE]
    assert failed(checks) == set()
    assert all(0 <= check.value < check.bound for check in checks.values())
    assert {(check.runtime, check.precision) for check in checks.values()} == {("onnx", "none")}
    refuse_failures(list(checks.values()))


def test_other_weights_are_found(verified):
    """A bundle of another model: everything but the reference itself disagrees."""
    name = "base_model.model.bert.encoder.layer.0.output.dense.weight"
    weight = dict(verified.adapted.model.named_parameters())[name].detach()
    checks = verified.checks(reference=verified.reference(**{name: 1.01 * weight}))
    assert failed(checks) == {LOSS, GRADIENT, JVP}
    with pytest.raises(ExportError, match=r"verification failed: onnx none: loss, relative error is .*, bound 0.0001"):
        refuse_failures(list(checks.values()))


def tampered(verified, tmp_path, kind, output):
    """A copy of the bundle with one output of one program of block.1 changed."""
    folder = shutil.copytree(verified.folder, tmp_path / "tampered")
    spec = next(
        p
        for p in verified.manifest.runtimes["onnx"].programs
        if (p.segment, p.kind, p.batch) == ("block.1", kind, 2) and p.directions in (0, 1)
    )
    path = folder / spec.file
    model = onnx.load(path, load_external_data=False)
    make_larger(model.graph, [result.name for result in spec.outputs].index(output))
    onnx.save(model, path)
    return folder


def make_larger(graph, position: int):
    """Multiply one of a program's outputs by 1 to 1.06: a norm behind it would undo one factor for all channels."""
    name = graph.output[position].name
    for node in graph.node:
        node.output[:] = ["right" if out == name else out for out in node.output]
        node.input[:] = ["right" if given == name else given for given in node.input]
    width = graph.output[position].type.tensor_type.shape.dim[-1].dim_value
    graph.initializer.append(numpy_helper.from_array(np.linspace(1, 1.06, width, dtype=np.float32), "factor"))
    graph.node.append(helper.make_node("Mul", ["right", "factor"], [name]))


@pytest.mark.parametrize(
    ("kind", "output", "lines"),
    [("dual", "tangent", {JVP}), ("vjp", "gradient", {GRADIENT}), ("plain", "hidden", {LOSS, GRADIENT})],
)
def test_a_wrong_program_is_found_under_its_line(verified, tmp_path, kind, output, lines):
    folder = tampered(verified, tmp_path, kind, output)
    assert failed(verified.checks(folder)) == lines


def test_directions_at_bottlenecks_have_a_line_of_their_own(exporting, model_folder, tmp_path):
    options = AdapterOptions("bottleneck", rank=2)
    narrow = Verified(exporting(adapter=options), model_folder, adapter=options)
    right = narrow.checks()
    assert list(right) == [LOSS, GRADIENT, JVP, SLOPE, MOVED]
    assert failed(right) == set()
    check_products(narrow)
    value = narrow.manifest.units[-1].parameters[0].name
    assert failed(narrow.checks(tampered(narrow, tmp_path, "dual", f"x:{value}"))) == {MOVED}


def many(checked):
    """A sample of more directions than `torch.func.jvp` takes."""
    return make_sample(checked.loaded, checked.adapted, checked.manifest, 5, 0)


def derivatives(checked):
    """The model's own along all directions, by `torch.func.jvp`."""
    sample, reference = many(checked), checked.reference()
    pairs = zip(sample.directions, sample.entering, strict=True)
    return np.stack([reference.jvp(sample.inputs, sample.values, *pair).numpy() for pair in pairs])


def check_products(checked):
    """Further derivatives, which are products with gradients, are those of `torch.func.jvp`."""
    expected, found = derivatives(checked), Truth(checked.reference(), many(checked)).jvps(5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    assert (found[:3] == expected[:3]).all()
    assert (found[3:] != expected[3:]).any()


def test_further_directions_are_products_with_gradients_where_both_oracles_agree(verified):
    check_products(verified)

    class Wrong(Reference):
        def backward(self, *args):
            gradient, slopes = super().backward(*args)
            return gradient, 1.01 * slopes

    wrong = Wrong(verified.adapted, verified.loaded.task)
    assert (Truth(wrong, many(verified)).jvps(5) == derivatives(verified)).all()


def test_a_wrong_oracle_is_found(verified):
    """Finite differences share nothing with automatic differentiation."""

    class Wrong(Reference):
        def along(self, *given):
            losses, slopes = super().along(*given)
            return losses, 1.2 * slopes

    checks = verified.checks(reference=Wrong(verified.adapted, verified.loaded.task))
    assert failed(checks) == {JVP, SLOPE}


def test_a_classifier_has_a_loss_and_a_gradient(exporting, model_folder):
    options = AdapterOptions("classifier")
    folder = exporting(adapter=options, cuts=1)
    checks = Verified(folder, model_folder, adapter=options).checks()
    assert list(checks) == [LOSS, GRADIENT]
    assert failed(checks) == set()


def test_a_quantized_bundle_reports_what_quantization_did(exported_once):
    manifest = Bundle.open(exported_once("rounded-int8", precision="int8", directions=(1, 2))).manifest
    checks = {check.what: check for check in manifest.verification}
    cosine = checks["cosine of the estimated gradient with the float model's"]
    change = checks["loss, relative change by quantization"]
    assert cosine.bound is None
    assert 0.9 < cosine.value <= 1
    assert 0 < change.value < 0.1
    assert all(check.precision == "int8" and check.passed for check in checks.values())
    assert {check.bound for what, check in checks.items() if what.startswith("jvp, RMS error")} == {0.05}


def test_directions_end_where_the_error_is_far_from_its_bound():
    assert is_far(0.001, 0.05, 4)
    assert is_far(0.5, 0.05, 4)
    assert not is_far(0.03, 0.05, 4)
    assert is_far(0.03, 0.05, 80)
    assert not is_far(1e-9, 0.05, 2), "too few to say anything"
    assert is_far(math.nan, 0.05, 1)


def test_a_value_that_is_no_number_fails():
    what, value, bound, passed = _line(LOSS, math.nan, 1e-4)
    assert not passed
    with pytest.raises(ExportError, match="is nan"):
        refuse_failures([Check("onnx", "none", what, value, bound, passed)])


def test_a_failed_verification_leaves_nothing(exporting, tmp_path, monkeypatch):
    """A bound that nothing meets: the export refuses its own bundle."""
    from export.check import verify as module

    monkeypatch.setitem(module.JVP_BOUND, "none", 0.0)
    with pytest.raises(ExportError, match=r"verification failed: onnx none: jvp, RMS error .*; nothing was written"):
        exporting(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- samples ---------------------------------------------------------------------------------------------------------


def test_sentences_are_real_and_padded(model_folder):
    loaded = load(str(model_folder), MODEL_TASKS["seq-cls"], LABELS)
    inputs = sample_inputs(loaded, 4, 32, 0)
    lengths = inputs["attention_mask"].sum(1)
    assert len(set(lengths.tolist())) > 1
    assert (inputs["input_ids"][inputs["attention_mask"] == 0] == loaded.pad_token_id).all()
    ids = loaded.tokenizer(SENTENCES[1])["input_ids"]
    assert inputs["input_ids"][1, :31].tolist() == ids[:31]
    assert inputs["token_type_ids"].max() == 1
    assert (inputs["token_type_ids"] * (1 - inputs["attention_mask"])).max() == 0


@pytest.mark.parametrize(("architecture", "task"), [("bert", "seq-cls"), ("bert", "qa"), ("gpt2", "causal-lm")])
def test_random_tokens_where_there_is_no_tokenizer(architecture, task):
    loaded = tiny(architecture, task)
    inputs = sample_inputs(loaded, 6, 12, 0)
    again, other = sample_inputs(loaded, 6, 12, 0), sample_inputs(loaded, 6, 12, 1)
    torch.testing.assert_close(inputs, again)
    assert not torch.equal(inputs["input_ids"], other["input_ids"])
    mask = inputs["attention_mask"] == 1
    assert len(set(mask.sum(1).tolist())) > 1
    assert (inputs["input_ids"][mask] != loaded.pad_token_id).all()
    labels = inputs["labels"]
    if task == "qa":
        assert (labels[:, 0] <= labels[:, 1]).all()
        assert (labels < mask.sum(1, keepdim=True)).all()
    elif task == "causal-lm":
        learnt = labels != IGNORED
        assert (labels[learnt] == inputs["input_ids"][learnt]).all()
        assert (learnt <= mask).all()
        assert learnt.any(1).all()
        assert (labels[~mask] == IGNORED).all()
    else:
        assert labels.min() >= 0
        assert labels.max() < 3


def test_the_sample_moves_every_trainable_tensor(verified):
    """LoRA starts as a no-op: at its start half of the derivatives would be zero."""
    initial = Bundle.open(verified.folder).initial_adapter()
    for name, value in verified.sample.values.items():
        assert (value.numpy() != initial[name]).any()
    assert {name for d in verified.sample.directions for name in d} == {
        p.name for unit in verified.manifest.units for p in unit.parameters
    }
    assert msgspec.json.encode(verified.manifest.verification)


class Doubled(torch.autograd.Function):
    """Written for reverse mode alone, as BLOOM's activation is."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, input_ids, attention_mask):
        return SimpleNamespace(logits=Doubled.apply(self.weight).expand(len(input_ids), 3))


def test_a_function_without_forward_mode_is_refused_in_one_line():
    ones = torch.ones(2, 4, dtype=torch.int64)
    inputs = {"input_ids": ones, "attention_mask": ones, "labels": torch.tensor([0, 2])}
    reference = Reference(Adapted(Constant(), {}, {"w": "weight"}, {}, {}), MODEL_TASKS["seq-cls"])
    with pytest.raises(ExportError, match="cannot differentiate an autograd"):
        reference.jvp(inputs, {"w": torch.ones(3)}, {"w": torch.ones(3)})

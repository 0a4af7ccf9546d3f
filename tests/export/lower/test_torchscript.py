"""The TorchScript lowering: every program gives in a loaded file what its graph gives, with the weights as stored."""

from __future__ import annotations

import io
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.bundle.manifest import PRECISIONS
from export.graph import vocabulary
from export.graph.slots import slot_of
from export.lower.target import lowering
from export.lower.torchscript.lowering import LOWERING
from export.lower.torchscript.weights import quantized_linear, quantized_table
from tests.export.lower.shaped import BATCH, LENGTH, as_stored, compared, programs_of, random_inputs
from tests.export.models import Chain

MODELS = [
    ("bert", "seq-cls", "lora"),
    ("gpt2", "causal-lm", "lora"),
    ("albert", "qa", "bitfit"),
    ("qwen3", "seq-cls", "ia3"),
]


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def chain(request):
    return Chain.build(*request.param, batch=BATCH, length=LENGTH, narrowed=True)


@pytest.fixture(scope="module", params=PRECISIONS)
def files(request, chain):
    """The precision, and each segment's programs with what they are lowered to."""
    return request.param, lowered(chain, request.param)


def lowered(chain, precision):
    stored = chain.captured.stored
    return {
        segment: (programs, LOWERING.lower(segment, programs, stored, precision))
        for segment, programs in programs_of(chain, 2).items()
    }


@torch.no_grad()
def test_every_program_computes_what_its_graph_does(chain, files):
    precision, segments = files
    check(segments, chain.captured.stored, precision)


@torch.no_grad()
def test_a_vocabulary_in_parts(monkeypatch):
    monkeypatch.setattr(vocabulary, "LARGEST", 64 * 32)
    chain = Chain.build("llama", "causal-lm", "lora", batch=BATCH, length=LENGTH)
    for precision in PRECISIONS:
        check(lowered(chain, precision), chain.captured.stored, precision)


def check(segments, stored, precision):
    for segment, (programs, lowered) in segments.items():
        assert lowered.fallbacks == []
        assert list(lowered.files) == [f"torchscript/{segment}.pt"]
        (content,) = lowered.files.values()
        module = torch.jit.load(io.BytesIO(content))
        for shaped in programs:
            entry = lowered.entries[shaped.name]
            assert entry.file in lowered.files
            inputs = list(random_inputs(shaped.program))
            expected = shaped.program.graph(*inputs, *as_stored(LOWERING, shaped.program, stored, precision))
            found = getattr(module, entry.method)(*inputs)
            largest = max(tensor.norm() for tensor in expected)  # some gradients are zero but for rounding
            for name, one, other in zip(shaped.program.outputs, found, expected, strict=True):
                assert one.shape == other.shape
                have, want = (compared(shaped.program, name, value) for value in (one, other))
                error = (have - want).norm() / (want.norm() + 1e-2 * largest)
                assert error < 1e-4, f"{segment}.{shaped.name}: {name} differs by {error:.1e}"


def code_of(content: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return "".join(archive.read(name).decode() for name in archive.namelist() if name.endswith(".py"))


def test_files_name_no_device_and_no_operators_of_our_own(files):
    for segment, (_, lowered) in files[1].items():
        (content,) = lowered.files.values()
        code = code_of(content)
        assert "torch.linear" in code or segment in ("embed", "head")
        assert "spry" not in code
        assert "torchao" not in code
        assert "torch.device" not in code
        assert "cpu" not in code
        for makes in ("arange", "zeros", "ones", "full", "empty", "scalar_tensor"):
            assert f"torch.{makes}(" not in code  # on the CPU, wherever the program runs


@pytest.fixture(scope="module")
def block():
    """A block wide enough to be quantized, with all its programs."""
    chain = Chain.build("bert", "seq-cls", "lora", batch=BATCH, length=LENGTH)
    return programs_of(chain, 2)["block.1"], chain.captured.stored


def test_weights_are_stored_once_in_few_bytes(block):
    programs, stored = block
    names = {slot_of(node).name for shaped in programs for node in shaped.program.stored}
    weights = sum(stored[name].numel() for name in names if stored[name].dim() == 2)
    others = sum(stored[name].nbytes for name in names if stored[name].dim() != 2)
    for precision, bits in (("none", 32), ("int8", 8), ("int4", 4)):
        (content,) = LOWERING.lower("block.1", programs, stored, precision).files.values()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            data = sum(info.file_size for info in archive.infolist() if "/data/" in info.filename)
        assert data - others <= 1.15 * weights * bits / 8
        assert len(content) - data <= 100_000 * len(programs)


def test_bytes_depend_on_the_input_alone(block):
    programs, stored = block
    for precision in PRECISIONS:
        first, again = (LOWERING.lower("block.1", programs, stored, precision) for _ in range(2))
        assert first == again
        turned = LOWERING.lower("block.1", programs[::-1], stored, precision)
        assert turned.files == first.files


def test_the_lowering_is_found_by_its_name():
    assert lowering("torchscript") is LOWERING
    assert LOWERING.versions()["torch"] == torch.__version__


# --- weights ---


@settings(max_examples=30, deadline=None)
@given(st.integers(32, 48), st.sampled_from([32, 64, 96]), st.sampled_from([1e-3, 1.0, 100.0]), st.integers(0, 1000))
def test_quantized_weights_are_close_and_act_as_what_they_say(rows, columns, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * scale
    for precision, half_step in (("int8", 0.5 / 127), ("int4", 0.5 / 7.5)):
        stored = quantized_linear(weight, precision)
        limit = weight.abs().amax(1, keepdim=True) * half_step * 1.1
        assert ((stored.float32() - weight).abs() <= limit).all()
        x, gradient = torch.randn(3, 5, columns, generator=generator), torch.randn(3, 5, rows, generator=generator)
        torch.testing.assert_close(stored.product(x), x @ stored.float32().T, rtol=1e-4, atol=1e-4 * scale)
        expected = gradient @ stored.float32()
        torch.testing.assert_close(stored.transposed_product(gradient), expected, rtol=1e-4, atol=1e-4 * scale)
        table = quantized_table(weight, precision)
        ids = torch.randint(rows, (4, 2), generator=generator)
        torch.testing.assert_close(table.rows(ids), table.float32()[ids])
        assert {tensor.dtype for tensor in table.tensors()} == {torch.int8, torch.float32}


def test_all_codes_of_int4_survive_packing():
    weight = torch.arange(-8, 8).repeat(32, 4).to(torch.float32)
    weight[:, ::32] = -7.5  # every group's largest number sets a scale of one
    weight[weight == -8] = -7.5
    stored = quantized_linear(weight, "int4")
    assert [tensor.dtype for tensor in stored.tensors()] == [torch.int8, torch.float16]
    assert stored.tensors()[0].shape == (32, 32)
    torch.testing.assert_close(stored.float32(), weight.round())


@pytest.mark.parametrize(("shape", "precision"), [((8, 64), "int8"), ((64, 31), "int4"), ((64, 64), "none")])
def test_small_layers_keep_their_numbers(shape, precision):
    weight = torch.randn(shape)
    torch.testing.assert_close(quantized_linear(weight, precision).float32(), weight, rtol=0, atol=0)
    torch.testing.assert_close(quantized_table(weight, precision).float32(), weight, rtol=0, atol=0)


def test_rows_that_do_not_divide_into_groups_are_int8():
    weight = torch.randn(64, 48)
    int8 = quantized_linear(weight, "int8")
    torch.testing.assert_close(quantized_linear(weight, "int4").float32(), int8.float32(), rtol=0, atol=0)


def test_a_row_of_zeros_stays_zero():
    for precision in PRECISIONS:
        assert not quantized_linear(torch.zeros(32, 64), precision).float32().any()
        assert not quantized_table(torch.zeros(32, 64), precision).float32().any()

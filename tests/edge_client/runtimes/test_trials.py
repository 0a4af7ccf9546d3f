"""A bundle's own trials, held against a runtime that computes right and against some that do not."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import DUAL, EMBED, ENTER, HEAD, PLAIN, VJP, ProgramSpec, TensorSpec
from edge_client.errors import WrongResults
from edge_client.runtimes import trials
from edge_client.runtimes.onnx import OnnxRuntime


class Wrong(OnnxRuntime):
    """Computes right, and then spoils the results of one kind of program."""

    kind = PLAIN
    spoil = staticmethod(lambda value: value)

    def _load(self, program):
        loaded = super()._load(program)
        if program.kind != self.kind:
            return loaded
        return lambda arrays: [self.spoil(value) for value in loaded(arrays)]


@pytest.fixture
def spec(tiny):
    return manifests.read(tiny / manifests.FILE_NAME).runtimes["onnx"]


def kinds(spec):
    programs = {program.name: program for program in spec.programs}
    return [(programs[trial.program].segment, programs[trial.program].kind) for trial in spec.trials]


def test_an_export_notes_each_kind_of_program_once_in_each_part_of_the_chain(spec):
    places = kinds(spec)
    assert len(set(places)) == len(places)
    assert {(EMBED, PLAIN), ("block.0", PLAIN), ("block.0", VJP), (HEAD, VJP)} <= set(places)
    assert {kind for segment, kind in places if segment == "block.1"} == {PLAIN, ENTER, DUAL, VJP}  # with one query
    assert {trial.bound for trial in spec.trials} == {1e-3}
    assert len(msgspec.json.encode(spec.trials)) < 20_000


@pytest.mark.parametrize(("last", "tried"), [(4, ["block.1"]), (3, ["block.1", "block.3"])], ids=["alike", "another"])
def test_of_blocks_that_are_alike_one_is_tried_and_it_goes_back_to_the_one_before(last, tried):
    """The first one's exact gradient ends there, and a classifier's last block has one query."""
    programs = [
        ProgramSpec(f"block.{number}", VJP, 1, 4, 0, "file", "", (), (), flops=flops, load_bytes=0, peak_bytes=0)
        for number, flops in enumerate([2, 4, 4, last])
    ]
    assert [program.segment for program in trials._tried(programs)] == tried


def test_the_smallest_shape_is_tried(bundle):
    spec = manifests.read(bundle / manifests.FILE_NAME).runtimes["onnx"]
    programs = {program.name: program for program in spec.programs}
    tried = [programs[trial.program] for trial in spec.trials]
    assert {program.batch for program in tried} == {1}
    assert {program.directions for program in tried} == {0, 1}


def test_what_was_noted_comes_again_and_no_program_stays_loaded(tiny, spec):
    with OnnxRuntime(tiny, threads=1) as runtime:
        trials.check(runtime, "onnx", spec)
        assert not runtime._loaded


def test_what_takes_more_memory_than_there_is_is_not_run(bundle):
    spec = manifests.read(bundle / manifests.FILE_NAME).runtimes["onnx"]
    needs = {program.name: program.load_bytes + program.peak_bytes for program in spec.programs}
    most = max(needs[trial.program] for trial in spec.trials)
    with Wrong(bundle, threads=1) as runtime:
        runtime.kind, runtime.spoil = PLAIN, lambda value: value
        assert trials.check(runtime, "onnx", spec, most)
        assert not trials.check(runtime, "onnx", spec, most - 1)
        runtime.spoil = lambda value: -value
        assert not trials.check(runtime, "onnx", spec, 0)  # nothing was run


@pytest.mark.parametrize("kind", [PLAIN, DUAL, VJP])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda value: value * np.float32(1.01),
        lambda value: -value,
        lambda value: value * np.float32(0),
        lambda value: np.full_like(value, np.nan),
        lambda value: np.where(np.arange(value.size).reshape(value.shape) == 5, np.float32(np.nan), value),
        lambda value: value.ravel()[::-1].reshape(value.shape),
    ],
    ids=["larger", "negative", "nothing", "no numbers", "one that is none", "out of order"],
)
def test_wrong_results_are_refused(tiny, spec, kind, spoil):
    with Wrong(tiny, threads=1) as runtime:
        runtime.kind, runtime.spoil = kind, spoil
        with pytest.raises(WrongResults, match=r"the runtime onnx gives wrong results here: .* is off by") as caught:
            trials.check(runtime, "onnx", spec)
        assert "another version of onnxruntime" in str(caught.value)


def test_what_processors_round_differently_is_no_error(tiny, spec):
    generator = np.random.default_rng(0)

    def rounded(value):
        return value * (1 + 1e-5 * generator.standard_normal(value.shape, np.float32))

    with Wrong(tiny, threads=1) as runtime:
        for runtime.kind in (PLAIN, DUAL, VJP):
            runtime.close()
            runtime.spoil = rounded
            trials.check(runtime, "onnx", spec)


def test_what_is_left_of_numbers_that_cancel_is_held_against_the_largest_output():
    values = [np.ones(100, np.float32), np.full(100, 1e-9, np.float32)]
    expected = [trials._outcome(value) for value in values]
    assert max(trials._errors([values[0], -values[1]], expected)) < 1e-5
    assert max(trials._errors([values[0], values[1] + 1], expected)) > 1


@pytest.mark.parametrize(("labels", "compared"), [((1, 4), (1, 4)), ((1,), (1, 4, 2))], ids=["tokens", "examples"])
def test_of_a_language_models_tokens_their_losses_are_compared(labels, compared):
    """Which follower is likeliest may turn on the last digits."""
    given = TensorSpec("labels", "int64", labels)
    program = ProgramSpec(HEAD, PLAIN, 1, 4, 0, "head", "", (given,), (), flops=0, load_bytes=0, peak_bytes=0)
    value = np.arange(8, dtype=np.float32).reshape(1, 4, 2)
    assert trials._compared(program, "logits", value).shape == compared
    assert trials._compared(program, "logits", value).ravel()[0] == (1 if compared == (1, 4) else 0)
    assert trials._compared(program, "loss", value) is value


def test_results_that_are_no_numbers_are_not_noted(tiny, spec):
    with Wrong(tiny, threads=1) as runtime:
        runtime.kind, runtime.spoil = VJP, lambda value: value * np.float32(np.inf)
        noted = trials.noted(runtime, spec)
    assert len(noted) < len(spec.trials)
    assert {kind for _, kind in kinds(msgspec.structs.replace(spec, trials=noted))} >= {PLAIN, DUAL}


def test_a_bundle_of_before_has_no_trials(spec):
    old = msgspec.to_builtins(spec)
    del old["trials"]
    read = msgspec.convert(old, manifests.RuntimeSpec)
    trials.check(OnnxRuntime(Path()), "onnx", read)  # nothing to run

"""Slots: the paper's cyclic rule in all its cases, neighbours by memory, and what a device can hold."""

from dataclasses import replace as replace_training

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edge_client.bundle import manifest as manifests
from edge_client.gradient.drawing import counted
from edge_client.wire.protocol import Training
from server.errors import Refusal
from server.jobs.completion import check_programs, complete
from server.jobs.settings import JobSettings
from server.policy.assignment import Needs, RoundSlot, choose, contiguous, cyclic, everything, slots

SHAPE = Training(batch=2, length=8)


@pytest.mark.parametrize(
    ("units", "clients", "expected"),
    [
        (5, 2, [(0, 2, 4), (1, 3)]),  # more units than clients: unit i goes to client i mod M
        (3, 3, [(0,), (1,), (2,)]),
        (2, 5, [(0,), (1,), (0,), (1,), (0,)]),  # more clients than units: client j takes unit j mod L
        (0, 2, [(), ()]),  # the head alone
    ],
)
def test_cyclic_is_the_papers_rule(units, clients, expected):
    assert cyclic(units, clients) == expected


@given(st.integers(0, 60), st.integers(1, 60))
def test_every_unit_has_a_holder(units, clients):
    for rule in (cyclic, contiguous, everything):
        groups = rule(units, clients)
        assert len(groups) == clients
        assert {unit for group in groups for unit in group} == set(range(units))


@given(st.integers(1, 60), st.integers(1, 60))
def test_neighbours_stay_together(units, clients):
    for group in contiguous(units, clients):
        assert list(group) == list(range(group[0], group[0] + len(group)))


def test_places_beyond_the_clients_repeat_the_first():
    assert [slot.units for slot in slots("cyclic", 4, 2, 3)] == [(0, 2), (1, 3), (0, 2)]


@pytest.mark.parametrize(
    ("assignment", "units", "clients", "least", "expected"),
    [
        ("cyclic", 3, 4, 2, [(0, 1), (1, 2), (0, 2), (0, 1)]),  # the first follows the last
        ("cyclic", 5, 2, 3, [(0, 2, 4), (1, 3, 4)]),  # who has as many keeps them
        ("memory", 4, 2, 3, [(0, 1, 2), (1, 2, 3)]),  # late cuts stay as late as can be
        ("all", 2, 2, 1, [(0, 1), (0, 1)]),
        ("cyclic", 2, 2, 5, [(0, 1), (0, 1)]),  # no more than there are
        ("cyclic", 0, 2, 2, [(), ()]),
    ],
)
def test_more_clients_share_a_unit(assignment, units, clients, least, expected):
    assert [slot.units for slot in slots(assignment, units, clients, clients, least)] == expected


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30))
def test_holders_are_spread_evenly(units, clients, least):
    """With as many clients as units, or a multiple, each unit has as many holders."""
    chosen = slots("cyclic", units, units * clients, units * clients, least)
    holders = [sum(unit in slot.units for slot in chosen) for unit in range(units)]
    assert holders == [clients * min(least, units)] * units


@pytest.fixture
def manifest(bundle):
    """A real manifest with memory that grows with the work: at this size what is measured is pages and chance."""
    read = manifests.read(bundle / "manifest.json")
    runtimes = {}
    for name, runtime in read.runtimes.items():
        programs = [replace(p, load_bytes=p.flops, peak_bytes=p.flops) for p in runtime.programs]
        runtimes[name] = replace(runtime, programs=tuple(programs))
    return replace(read, runtimes=runtimes)


@pytest.fixture
def needs(manifest):
    return Needs(manifest, SHAPE)


def test_a_device_gets_the_largest_batch_it_can_hold(needs):
    slot = RoundSlot(0, (0,))
    full, small = (needs.bytes("onnx", 1, batch, SHAPE) for batch in (2, 1))
    assert needs.fit(slot, ["onnx"], None).batch == 2
    assert needs.fit(slot, ["onnx"], full).batch == 2
    assert small < full
    assert needs.fit(slot, ["onnx"], full - 1).batch == 1
    assert needs.fit(slot, ["onnx"], small - 1) is None
    assert needs.fit(slot, ["executorch"], None) is None


def test_a_device_that_holds_one_program_at_a_time_needs_no_more_than_its_largest(needs):
    slot = RoundSlot(0, (0,))
    together, alone = (needs.bytes("onnx", 1, 2, SHAPE, low_memory=low) for low in (False, True))
    assert alone < together
    assert needs.fit(slot, ["onnx"], alone, low_memory=True).batch == 2
    assert needs.fit(slot, ["onnx"], alone) is None or needs.fit(slot, ["onnx"], alone).batch == 1
    assert needs.fit(slot, ["onnx"], 1, low_memory=True) is None


def test_by_memory_a_small_device_gets_a_late_cut_and_a_large_one_an_early(manifest, needs):
    free = slots("memory", len(manifest.units), 2, 2)
    early, late = (needs.fit(slot, ["onnx"], None).needs for slot in free)
    assert late < early
    choice = {memory: choose("memory", free, needs, ["onnx"], memory)[0].number for memory in (late, early)}
    assert choice == {late: 1, early: 0}


def test_each_device_gets_the_deepest_exact_step_it_can_hold(manifest):
    """Of two blocks with two units each; what the way back comes through is trained by everybody."""
    needs = Needs(manifest, Training(batch=2, length=8, estimator="auto"))
    slot = RoundSlot(0, (1,))
    fits = [needs.fit(slot, ["onnx"], None)]
    while (fit := needs.fit(slot, ["onnx"], fits[-1].needs - 1)) is not None:
        fits.append(fit)
    variants = [(fit.training.estimator, fit.training.exact_blocks, fit.batch, fit.units) for fit in fits]
    assert variants[0] == ("mixed", 2, 2, (0, 1, 2, 3))
    assert {units for _, blocks, _, units in variants if blocks == 1} <= {(1, 2, 3)}
    assert {units for _, blocks, _, units in variants if blocks == 0} <= {(1,)}
    depths = [blocks for _, blocks, _, _ in variants]
    assert depths == sorted(depths, reverse=True)
    assert min(depths) < 2, "less memory, a step that goes less far back"
    assert all(fit.cut == 1 for fit in fits)


def test_an_estimator_that_the_bundle_lacks_fits_nobody(manifest):
    def bytes_of(**training):
        given = Training(**{"batch": 2, "length": 8, **training})
        return Needs(manifest, given).bytes("onnx", 1, 2, given)

    assert bytes_of(length=9) is None
    assert bytes_of(directions=9) == bytes_of(directions=1) > 0  # in turns
    assert bytes_of(estimator="exact") > 0
    assert bytes_of(estimator="central", directions=9) > 0
    assert bytes_of(estimator="mixed", directions=9) == bytes_of(estimator="mixed") > 0
    assert bytes_of(estimator="mixed", exact_blocks=2) == bytes_of(estimator="exact")


def test_directions_run_in_turns_of_what_the_bundle_has(manifest):
    in_twos = replace(manifest, directions=(2,))
    shape = {"batch": 2, "length": 8}
    check_programs(Training(**shape, directions=16), in_twos)
    with pytest.raises(Refusal, match="9 directions cannot be run in turns of 2"):
        check_programs(Training(**shape, directions=9), in_twos)
    check_programs(Training(**shape, directions=9, estimator="exact"), in_twos)


@pytest.mark.parametrize(
    ("training", "advice"),
    [
        (
            {"mode": "iteration", "head": "apart"},
            "take training.mode=epoch, or training.estimator=central, or",
        ),
        ({"per_example": False}, "take training.per_example=true"),
    ],
)
def test_directions_at_bottlenecks_stay_on_the_device(narrow, training, advice):
    """The server has no text, and so cannot say what they are in weights."""
    manifest = manifests.read(narrow / "manifest.json")
    shape = {"batch": 4, "length": 8}

    def settings(**others):
        return JobSettings(training=Training(**{**shape, **others}))

    with pytest.raises(Refusal, match=rf"\(bottleneck\) has directions at bottlenecks.*{advice}"):
        complete(settings(**training), manifest)
    assert complete(settings(), manifest).training.per_example
    assert complete(settings(estimator="central", mode="iteration"), manifest).training.head == "joint"
    assert complete(settings(estimator="exact"), manifest)


def test_as_many_directions_as_a_texts_bottleneck_has_numbers(narrow):
    manifest = manifests.read(narrow / "manifest.json")
    training = Training(batch=4, length=8, directions=0, kind="orthogonal")
    assert counted(training, manifest, [[0]]).directions == 16  # 8 tokens, 2 numbers each
    assert counted(replace_training(training, per_example=False), manifest, [[0]]).directions == 64

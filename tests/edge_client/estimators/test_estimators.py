"""Every estimator on a real bundle against the exact gradient, whole and in pieces."""

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from edge_client.bundle.chain import directions_at_once
from edge_client.errors import PluginError, TrainingError
from edge_client.estimators.estimator import trained
from edge_client.estimators.registry import ESTIMATORS, estimator_for, kind_of
from edge_client.step.passes import Passes, rows_at_once
from edge_client.training.session import programs_of
from edge_client.wire.protocol import Training
from tests.edge_client.bench import cosine, flat

# --- estimators ---


def test_the_exact_gradient_is_that_of_finite_differences(bench, changed):
    task = changed(estimator="exact")
    found = bench.gradient(task)
    assert set(found.gradients) == trained(bench.manifest, task)
    passes, batch = bench.passes(task), bench.batches(task).at(0)
    for name in found.gradients:
        size = 0.01 / np.linalg.norm(found.gradients[name])
        move = size * found.gradients[name]
        above, below = (
            passes.losses(batch, bench.weights | {name: bench.weights[name] + side * move}).mean() for side in (1, -1)
        )
        assert (above - below) / 2 == pytest.approx(size * np.sum(found.gradients[name] ** 2), rel=0.02)


@pytest.mark.parametrize(
    "settings",
    [
        {"estimator": "forward"},
        {"estimator": "forward", "per_example": False},
        {"estimator": "forward", "head": "apart", "directions": 2},
        {"estimator": "forward", "head": "joint", "kind": "rademacher"},
        {"estimator": "central", "head": "joint", "directions": 3},
        {"estimator": "forward", "head": "apart", "directions": 2, "kind": "orthogonal"},
        {"estimator": "mixed", "exact_blocks": 0},
        {"estimator": "mixed", "exact_blocks": 0, "directions": 2, "per_example": False},
    ],
    ids=str,
)
def test_estimates_average_to_the_exact_gradient(bench, changed, settings):
    task = changed(**settings)
    exact = bench.gradient(changed(estimator="exact"))
    estimator = estimator_for(bench.manifest, task, bench.passes(task, cache_bytes=1 << 20))
    batch = bench.batches(task).at(0)
    found = [estimator.gradient(batch, bench.weights, i) for i in range(400)]
    assert found[0].loss == pytest.approx(exact.loss, rel=1e-3)
    assert set(found[0].gradients) == set(exact.gradients)
    head = {p.name for p in bench.manifest.head}
    mean = {name: np.mean([one.gradients[name] for one in found], axis=0) for name in exact.gradients}
    # Estimated together, what the head's derivative adds to the units' is noise that this many steps don't remove.
    parts = [set(mean)] if task.training.head == "joint" else [set(mean) - head, head]
    for part in parts:
        truth = flat(exact.gradients, part)
        single, together = (cosine(flat(gradients, part), truth) for gradients in (found[0].gradients, mean))
        assert together > max(0.75, single - 1e-5)
        assert flat(mean, part) @ truth == pytest.approx(truth @ truth, rel=0.3)


def test_forward_and_central_agree_on_a_shared_direction(bench, changed):
    common = {"head": "joint", "per_example": False, "directions": 2}
    forward = bench.gradient(changed(estimator="forward", **common))
    central = bench.gradient(changed(estimator="central", sigma=1e-2, **common))
    assert set(forward.gradients) == set(central.gradients)
    assert cosine(flat(forward.gradients), flat(central.gradients)) > 0.999
    assert np.linalg.norm(flat(forward.gradients)) == pytest.approx(np.linalg.norm(flat(central.gradients)), rel=0.02)


def test_the_heads_exact_gradient_comes_with_forward(bench, changed):
    head = {p.name for p in bench.manifest.head}
    exact, forward = bench.gradient(changed(estimator="exact")), bench.gradient(changed(estimator="forward"))
    np.testing.assert_allclose(flat(forward.gradients, head), flat(exact.gradients, head), rtol=1e-4, atol=1e-6)


def test_central_differences_refuse_another_head(changed, bench):
    with pytest.raises(TrainingError, match="head=joint"):
        bench.gradient(changed(estimator="central"))


def test_an_estimator_of_a_newer_version(changed, bench):
    with pytest.raises(PluginError, match="no estimator 'second-order'; it has forward, central, exact, mixed"):
        bench.gradient(changed(estimator="second-order"))


@pytest.mark.parametrize(("units", "cut"), [([], 3), ([], 1), ([0, 1, 2, 3], 1), ([0, 3], 1)])
def test_any_units_from_any_cut(bench, changed, units, cut):
    exact = bench.gradient(changed(estimator="exact", units=units, cut=cut))
    for settings in ({}, {"head": "apart"}, {"estimator": "central", "head": "joint"}, {"estimator": "mixed"}):
        found = bench.gradient(changed(units=units, cut=cut, **settings))
        assert set(found.gradients) == set(exact.gradients)
        assert found.loss == pytest.approx(exact.loss, rel=1e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("units", "cut"), [([], 3), ([], 1), ([2, 3], 2), ([0, 3], 1)])
def test_a_step_loads_the_programs_that_were_planned(bench, changed, estimator, units, cut):
    task = changed(estimator=estimator, units=units, cut=cut)
    task = replace(task, training=kind_of(task.training).settled(task.training))
    bench.runtime.close()
    bench.gradient(task)
    planned = programs_of(bench.manifest, task)
    assert set(bench.runtime._loaded) == {(program.file, program.method) for program in planned}


# --- pieces of a batch ---


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_batch_in_pieces_gives_what_the_whole_batch_gives(bench, changed, estimator, at_once):
    settings = {"estimator": estimator, "directions": 2, "head": "exact"}
    head = ESTIMATORS[estimator].settled(Training()).head
    if head == "joint":  # a difference divides the losses' rounding by sigma
        settings |= {"head": head, "sigma": 2e-2}
    for batch in (0, 1):  # the second has only three examples
        whole = bench.gradient(changed(**settings), batch=batch)
        pieces = bench.gradient(changed(batch=at_once, **settings), batch=batch)
        assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
        for name in whole.gradients:
            np.testing.assert_allclose(pieces.gradients[name], whole.gradients[name], rtol=2e-3, atol=2e-4)


def test_scalars_in_pieces(bench, changed):
    whole, pieces = (bench.gradient(changed(head="apart", batch=batch)) for batch in (4, 1))
    for name in whole.gradients:
        np.testing.assert_allclose(pieces.gradients[name], whole.gradients[name], rtol=1e-3, atol=1e-5)


def test_directions_in_turns(bench, changed):
    task = changed(directions=4, head="exact")  # programs exist for 1 and 2
    assert directions_at_once(bench.manifest, 4) == 2
    assert directions_at_once(bench.manifest, 3) == 1
    found = bench.gradient(task)
    exact = bench.gradient(changed(estimator="exact"))
    head = {p.name for p in bench.manifest.head}
    np.testing.assert_allclose(flat(found.gradients, head), flat(exact.gradients, head), rtol=1e-4, atol=1e-6)
    assert np.isfinite(flat(found.gradients)).all()


ROOM = 1 << 20


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
@pytest.mark.parametrize("settings", [{}, {"per_example": False}, {"directions": 4}, {"batch": 2}], ids=str)
def test_mixed_is_exact_through_the_last_blocks_and_forward_before_them(bench, changed, blocks, settings):
    """The same directions as a forward step's over the units before, and the true gradient of all else."""
    every = {"units": [0, 1, 2, 3], "cut": 1} | settings
    exact = bench.gradient(changed(**every, estimator="exact"))
    found = bench.gradient(changed(**every, estimator="mixed", exact_blocks=blocks), iteration=3)
    assert found.loss == pytest.approx(exact.loss, rel=1e-5)
    before = [0, 1, 2, 3][: max(0, 4 - 2 * blocks)]  # two units in each of two blocks
    forward = bench.gradient(changed(**every | {"units": before}), iteration=3).gradients if before else {}
    estimated = {p.name for unit in before for p in bench.manifest.units[unit].parameters}
    assert set(found.gradients) == set(exact.gradients)
    for name, gradient in found.gradients.items():
        expected = (forward if name in estimated else exact.gradients)[name]
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.parametrize(("units", "own"), [([0, 3], 1), ([2, 3], 0)])
def test_mixed_with_whole_blocks_of_orthogonal_directions_is_the_exact_gradient(
    bench, changed, per_example, units, own
):
    """Its mean over all directions, which is what makes an estimate unbiased; in turns and in pieces of rows."""
    (size,) = {unit.size for unit in bench.manifest.units}
    every = {"units": units, "cut": 1 if own else 2, "batch": 2, "directions": max(own, 1) * size}
    along = {"kind": "orthogonal", "per_example": per_example}
    found = bench.gradient(changed(**every, **along, estimator="mixed"), iteration=5, cache_bytes=ROOM)
    exact = bench.gradient(changed(**every, estimator="exact"))
    assert set(found.gradients) == set(exact.gradients)
    for name, gradient in exact.gradients.items():
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-3, atol=1e-5)


def test_directions_end_where_the_way_back_does_from_an_early_cut(bench, changed):
    """Somebody else's unit, used in both blocks, moves that to the head, though the task's own would let it be."""
    both = msgspec.structs.replace(bench.manifest.units[0], segments=("block.0", "block.1"))
    manifest = msgspec.structs.replace(bench.manifest, units=(both, *bench.manifest.units[1:]))
    estimated = {p.name for unit in (2, 3) for p in manifest.units[unit].parameters}
    for cut, names in ((1, estimated), (2, set())):
        task = changed(estimator="mixed", units=[2, 3], cut=cut)
        passes = Passes(manifest, bench.runtime, task)
        assert set(estimator_for(manifest, task, passes).directions(0)) == names


def test_turns_of_a_mixed_step_share_what_lies_behind(bench, changed, monkeypatch):
    task = changed(estimator="mixed", units=[0, 1, 2, 3], cut=1, directions=10, batch=2)
    estimator, ran = estimator_for(bench.manifest, task, bench.passes(task, cache_bytes=ROOM)), Counter()

    def run(program, inputs, run=bench.runtime.run):
        ran[program.segment, program.kind] += 1
        return run(program, inputs)

    with monkeypatch.context() as patch:
        patch.setattr(bench.runtime, "run", run)
        for iteration in range(2):  # the second finds what enters the cut
            estimator.gradient(bench.batches(task).at(0), bench.weights, iteration)
    embed, first, last, head = (segment.name for segment in bench.manifest.segments)
    steps, pieces, turns = 2, 2, 5
    assert ran == {
        (embed, "plain"): pieces, (first, "enter"): steps * pieces * turns, (last, "plain"): steps * pieces,
        (head, "vjp"): steps * pieces, (last, "vjp"): steps * pieces,
    }  # fmt: skip


def test_no_shape_is_small_enough(bench, changed):
    assert rows_at_once(bench.manifest, changed(batch=3)) == 2
    with pytest.raises(TrainingError, match="no programs for at most 4 examples of 16 tokens; it has 4x8, 2x8, 1x8"):
        rows_at_once(bench.manifest, changed(length=16))

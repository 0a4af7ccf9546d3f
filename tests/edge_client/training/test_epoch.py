"""Local rounds on a real bundle: what they learn, interrupted and resumed, and what they keep."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from edge_client.bundle.manifest import FeatureSpec
from edge_client.data.batches import shuffled
from edge_client.errors import TrainingError
from edge_client.estimators.estimator import trained
from edge_client.estimators.registry import ESTIMATORS, estimator_for
from edge_client.training.epoch import TrainingState, evaluate, report, steps_in, train, update
from edge_client.wire.protocol import Training
from tests.edge_client.bench import CLASSES, EXAMPLES

# --- the prefix's cache ---


def test_kept_prefixes_change_nothing_and_respect_their_limit(bench, changed):
    task = changed(epochs=3)
    without = bench.round(task)[-1]
    passes = bench.passes(task, cache_bytes=1 << 20)
    estimator = estimator_for(bench.manifest, task, passes)
    kept = list(train(task, bench.manifest, estimator, bench.batches(task), TrainingState(bench.weights)))[-1]
    assert passes.prefixes.bytes == 2 * 4 * 8 * 32 * 4  # both batches
    for name, value in without.weights.items():
        np.testing.assert_array_equal(kept.weights[name], value)

    tight = bench.passes(task, cache_bytes=5000)
    list(train(task, bench.manifest, estimator_for(bench.manifest, task, tight), bench.batches(task), without))
    assert tight.prefixes.bytes <= 5000
    passes.changed(["somebody else's"])
    assert passes.prefixes.bytes > 0
    passes.changed([bench.manifest.units[0].parameters[0].name])
    assert passes.prefixes.bytes == 0


# --- rounds ---


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_round_moves_its_own_weights_and_learns(bench, changed, estimator):
    head = ESTIMATORS[estimator].settled(Training()).head
    rate = 0.01 if head == "joint" else 0.1
    task = changed(estimator=estimator, head=head, epochs=30, learning_rate=rate)
    states = bench.round(task, cache_bytes=1 << 20)
    own = trained(bench.manifest, task)
    assert len(states) == 60
    for name, value in states[-1].weights.items():
        assert (name in own) == bool((value != bench.weights[name]).any())
    told = report(states[-1])
    assert (told.examples, told.steps) == (7, 60)
    assert set(update(task, bench.manifest, states[-1])) == own
    first, last = states[0].loss, states[-1].loss - states[-2].loss
    assert last < first


@pytest.mark.parametrize(("optimizer", "estimator"), [("sgd", "forward"), ("adamw", "forward"), ("adamw", "mixed")])
@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_resumed_round_ends_with_the_same_bits(bench, changed, optimizer, estimator, stop):
    task = changed(optimizer=optimizer, weight_decay=0.01, epochs=2, estimator=estimator, units=[0, 3], cut=1)
    whole = bench.round(task, cache_bytes=1 << 20)
    resumed = bench.round(task, state=whole[stop], cache_bytes=1 << 20)[-1]
    assert resumed.step == whole[-1].step
    assert resumed.loss == whole[-1].loss
    assert resumed.examples == whole[-1].examples
    for name, value in whole[-1].weights.items():
        assert resumed.weights[name].tobytes() == value.tobytes()


def test_how_many_steps():
    assert steps_in(Training(epochs=3), 5) == 15
    assert steps_in(Training(epochs=3, iterations=4), 5) == 4
    assert steps_in(Training(mode="iteration"), 5) == 1
    assert steps_in(Training(mode="iteration", iterations=7), 5) == 7


def test_a_head_with_a_rate_of_its_own(bench, changed):
    plain, slow = (bench.round(changed(epochs=1, head_learning_rate=rate))[0] for rate in (None, 1e-9))
    head = {p.name for p in bench.manifest.head}
    for name in trained(bench.manifest, changed()):
        moved = np.abs(slow.weights[name] - bench.weights[name]).max()
        assert (moved < 1e-6) == (name in head)
        assert np.abs(plain.weights[name] - bench.weights[name]).max() > 1e-6


def test_what_stands_before_the_logits_moves_by_the_smaller_rate(bench, changed):
    """Here the bias is taken for a layer of its own; the other's rate is found from what reaches it."""
    weight, bias = (next(p.name for p in bench.manifest.head if p.name.endswith(end)) for end in (".weight", ".bias"))
    known = FeatureSpec(weight, "", 1.0)
    manifest = msgspec.structs.replace(bench.manifest, features=known)
    assert manifest.before_logits == {bias}
    assert msgspec.structs.replace(bench.manifest, features=None).before_logits == set()
    for units, head, expected in ((0.01, 0.5, 0.01), (0.5, 0.01, 0.01)):
        task = changed(epochs=1, learning_rate=units, head_learning_rate=head, optimizer="sgd")
        passes = bench.passes(task)
        estimator = estimator_for(manifest, task, passes)
        gradients = estimator.gradient(bench.batches(task).at(0), bench.weights, 0).gradients
        after = next(train(task, manifest, estimator, bench.batches(task), TrainingState(bench.weights))).weights
        for name, rate in ((weight, head), (bias, expected)):
            np.testing.assert_allclose(after[name], bench.weights[name] - rate * gradients[name], rtol=1e-6)


def test_numbers_out_of_range_end_the_round(bench, changed):
    weights = {name: value * np.float32(1e38) for name, value in bench.weights.items()}
    with pytest.raises(TrainingError, match="not finite"), np.errstate(all="ignore"):
        bench.round(changed(), state=TrainingState(weights))


def test_order_is_of_the_seed_alone():
    assert shuffled(10, 7, 0) == shuffled(10, 7, 0)
    assert sorted(shuffled(10, 7, 0)) == list(range(10))
    assert shuffled(10, 7, 0) != shuffled(10, 7, 1) != shuffled(10, 8, 1)
    assert shuffled(6, 2**64 - 1, 3) == shuffled(6, 2**64 - 1, 3)
    assert shuffled(0, 1, 0) == []


def test_every_pass_visits_every_example_once(bench, changed):
    task = changed()
    batches = bench.batches(task)
    assert len(batches) == 2
    for epoch in range(3):
        seen = [batches.at(2 * epoch + i) for i in range(2)]
        assert sorted(batch.number for batch in seen) == [0, 1]
        assert sum(batch.examples for batch in seen) == 7
    rows = np.concatenate([b.tokens["input_ids"][b.weight > 0] for b in (batches.at(0), batches.at(1))])
    assert len(np.unique(rows, axis=0)) == 7


def test_evaluation_counts_what_is_right(bench, changed):
    task = changed(batch=2)
    passes = bench.passes(task)
    encoder = bench.batches(task).encoder
    once, again = evaluate(passes.logits, EXAMPLES, encoder, CLASSES, [bench.weights, bench.weights])
    assert once.total == 7
    assert once == again
    states = bench.round(replace(task, training=replace(task.training, estimator="exact", epochs=60)))
    models = [bench.weights, states[-1].weights]
    before, after = map(CLASSES.hits, evaluate(passes.logits, EXAMPLES, encoder, CLASSES, models))
    assert before == CLASSES.hits(once)
    assert after > before


def test_evaluation_in_pieces_of_which_one_has_no_example(bench, changed):
    task = changed(batch=2)  # of a batch of four, whose second half only fills
    passes, whole = bench.passes(task), bench.passes(changed())
    encoder = bench.batches(task).encoder
    found = [evaluate(one.logits, EXAMPLES[:5], encoder, CLASSES, [bench.weights]) for one in (passes, whole)]
    assert found[0] == found[1]
    assert found[0][0].total == 5

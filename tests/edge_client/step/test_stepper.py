"""Steps over a model that is written out by hand, against differences of the whole model in double precision."""

import msgspec
import numpy as np
import pytest

from edge_client import BundleError, ProgramInputError
from edge_client.bundle.chain import Chain, cut_for, cuts, exact_cut
from edge_client.gradient.estimate import estimate
from tests.edge_client.toy import HEAD, SEGMENTS, B, C, H, K, T, Toy, draw, gradients, stepper, table


@pytest.fixture(params=[False, True], ids=["own weights", "shared weights"])
def toy(request) -> Toy:
    return Toy(shared=request.param)


WEIGHTS = np.array([1.0, 0.0, 3.0])


def test_forward(toy):
    steps, runtime = stepper(toy)
    found = steps.forward(toy.tokens, toy.labels, toy.weights)
    np.testing.assert_allclose(found.loss, toy.losses(toy.weights), rtol=1e-5)
    assert found.logits.shape == (B, C)
    assert runtime.ran == [f"{segment}.plain" for segment in SEGMENTS]
    hidden = steps.prefix(toy.tokens, toy.weights, "block.1")
    again = steps.forward(toy.tokens, toy.labels, toy.weights, hidden=hidden, cut="block.1")
    np.testing.assert_array_equal(again.loss, found.loss)


def test_dual_gives_derivatives_and_the_heads_gradient(toy):
    steps, runtime = stepper(toy)
    directions = draw(toy)
    found = steps.along(toy.tokens, toy.labels, toy.weights, directions, 1, WEIGHTS)
    assert runtime.ran == ["embed.plain", "block.0.enter", "block.1.dual", "head.dual"]
    np.testing.assert_allclose(found.loss, toy.losses(toy.weights), rtol=1e-5)
    np.testing.assert_allclose(found.jvp, table(toy, directions), rtol=1e-4, atol=1e-5)
    assert found.gradients.keys() == {HEAD}
    np.testing.assert_allclose(found.gradients[HEAD], gradients(toy, WEIGHTS / 4)[HEAD], rtol=1e-4, atol=1e-6)


def test_a_parameter_without_a_direction_does_not_move():
    toy = Toy()
    steps, _ = stepper(toy)
    directions = draw(toy, [1])
    expected = table(toy, directions)
    for cut in ("block.0", "block.1"):
        found = steps.along(toy.tokens, toy.labels, toy.weights, directions, cut)
        np.testing.assert_allclose(found.jvp, expected, rtol=1e-4, atol=1e-5)


def test_a_kept_prefix_gives_the_same_step():
    toy = Toy()
    steps, runtime = stepper(toy)
    directions = draw(toy, [1])
    whole = steps.along(toy.tokens, toy.labels, toy.weights, directions, "block.1")
    hidden = steps.prefix(toy.tokens, toy.weights, "block.1")
    runtime.ran.clear()
    found = steps.along(toy.tokens, toy.labels, toy.weights, directions, "block.1", hidden=hidden)
    assert runtime.ran == ["block.1.enter", "head.dual"]
    np.testing.assert_array_equal(found.jvp, whole.jvp)
    np.testing.assert_array_equal(found.gradients[HEAD], whole.gradients[HEAD])
    steps.release()
    assert not runtime.loaded


def test_scalars_move_the_head_on_its_own():
    toy = Toy()
    steps, runtime = stepper(toy)
    directions = draw(toy, [1], head=True)
    found = steps.along(toy.tokens, toy.labels, toy.weights, directions, "block.1", scalar_head=True)
    assert runtime.ran[-1] == "head.scalar"
    units = {name: value for name, value in directions.items() if name != HEAD}
    np.testing.assert_allclose(found.jvp, table(toy, units), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.head_jvp, table(toy, {HEAD: directions[HEAD]}), rtol=1e-4, atol=1e-5)
    hidden = steps.prefix(toy.tokens, toy.weights, "block.1")
    again = steps.along(toy.tokens, toy.labels, toy.weights, directions, "block.1", hidden=hidden, scalar_head=True)
    np.testing.assert_array_equal(again.head_jvp, found.head_jvp)


def test_scalars_at_the_head():
    toy = Toy()
    steps, _ = stepper(toy)
    directions = draw(toy, [], head=True)
    found = steps.along(toy.tokens, toy.labels, toy.weights, directions, "head", scalar_head=True)
    np.testing.assert_allclose(found.head_jvp, table(toy, directions), rtol=1e-4, atol=1e-5)
    assert not found.jvp.any()


@pytest.mark.parametrize("low_memory", [False, True])
def test_exact_gives_every_gradient(toy, low_memory):
    steps, runtime = stepper(toy, low_memory=low_memory)
    found = steps.exact(toy.tokens, toy.labels, toy.weights, "embed", WEIGHTS)
    expected = gradients(toy, WEIGHTS / 4)
    assert found.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.loss, toy.losses(toy.weights), rtol=1e-5)
    assert runtime.ran == [
        "embed.plain", "block.0.plain", "block.1.plain", "head.vjp", "block.1.vjp", "block.0.vjp"
    ]  # fmt: skip
    assert runtime.most_loaded == (1 if low_memory else 6)
    assert not (low_memory and runtime.loaded)


def test_what_runs_once_on_the_way_there_and_back_is_set_aside():
    toy = Toy()
    steps, runtime = stepper(toy)
    steps.exact(toy.tokens, toy.labels, toy.weights, "block.1")
    assert runtime.aside == ["block.1.plain", "head.vjp", "block.1.vjp"], "not what lies before the cut"


def test_exact_goes_back_no_further_than_the_cut():
    toy = Toy()
    steps, runtime = stepper(toy)
    found = steps.exact(toy.tokens, toy.labels, toy.weights, "block.1", low_memory=True)
    assert found.gradients.keys() == {HEAD, "block.1.A", "block.1.B"}
    assert runtime.ran[-2:] == ["head.vjp", "block.1.vjp"]
    assert runtime.most_loaded == 1


def test_a_shared_unit_used_before_the_cut_has_no_whole_gradient():
    toy = Toy(shared=True)
    steps, runtime = stepper(toy)
    assert steps.exact(toy.tokens, toy.labels, toy.weights, "block.1").gradients.keys() == {HEAD}
    assert runtime.ran[-1] == "head.vjp"
    with pytest.raises(ProgramInputError, match=r"shared.A is used in block.0, before the cut block.1"):
        steps.along(toy.tokens, toy.labels, toy.weights, draw(toy), "block.1")


@pytest.mark.parametrize(
    ("end", "units", "ran"),
    [
        ("block.0", [], ["embed.plain", "block.0.plain", "block.1.plain", "head.vjp", "block.1.vjp", "block.0.vjp"]),
        ("block.1", [0], ["embed.plain", "block.0.enter", "block.1.plain", "head.vjp", "block.1.vjp"]),
        ("head", [0, 1], ["embed.plain", "block.0.enter", "block.1.dual", "head.vjp"]),
    ],
)
@pytest.mark.parametrize("low_memory", [False, True])
def test_mixed_is_exact_behind_its_second_cut_and_forward_before_it(end, units, ran, low_memory):
    toy = Toy()
    steps, runtime = stepper(toy, low_memory=low_memory)
    directions = draw(toy, units)
    found = steps.mixed(toy.tokens, toy.labels, toy.weights, directions, "block.0", end, WEIGHTS)
    assert runtime.ran == ran
    assert runtime.most_loaded == (1 if low_memory else len(ran))
    expected = table(toy, directions) * (WEIGHTS > 0)  # what counts nothing has no gradient to tell its slope by
    np.testing.assert_allclose(found.jvp, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.behind.loss, toy.losses(toy.weights), rtol=1e-5)
    exact = gradients(toy, WEIGHTS / 4)
    assert found.behind.gradients.keys() == exact.keys() - directions.keys()
    for name, gradient in found.behind.gradients.items():
        np.testing.assert_allclose(gradient, exact[name], rtol=1e-4, atol=1e-6)

    hidden = steps.prefix(toy.tokens, toy.weights, "block.0")
    given = toy.tokens, toy.labels, toy.weights, directions, "block.0", end, WEIGHTS
    np.testing.assert_array_equal(steps.mixed(*given, hidden=hidden).jvp, found.jvp)
    runtime.ran.clear()
    again = steps.mixed(*given, hidden=hidden, behind=found.behind)
    np.testing.assert_array_equal(again.jvp, found.jvp)
    assert runtime.ran == [name for name in ran if name.endswith(("enter", "dual"))], "nothing behind runs twice"


def test_mixed_takes_no_direction_behind_its_second_cut():
    toy = Toy()
    steps, _ = stepper(toy)
    with pytest.raises(ProgramInputError, match=r"block.1.A is used in block.1, and this step goes back to block.1"):
        steps.mixed(toy.tokens, toy.labels, toy.weights, draw(toy), "block.0", "block.1")
    shared = Toy(shared=True)
    steps, _ = stepper(shared)
    with pytest.raises(ProgramInputError, match=r"shared.A is used in block.1, and this step goes back to block.1"):
        steps.mixed(shared.tokens, shared.labels, shared.weights, draw(shared), "block.0", "block.1")


def test_how_far_a_mixed_step_goes_back():
    manifest = Toy().manifest()
    assert [exact_cut(manifest, 1, blocks) for blocks in range(4)] == [3, 2, 1, 1]
    assert [exact_cut(manifest, 2, blocks) for blocks in range(4)] == [3, 2, 2, 2], "nothing is trained before"
    assert [exact_cut(manifest, 3, blocks) for blocks in range(4)] == [3, 3, 3, 3]
    embed, first, second, head = manifest.segments
    grouped = msgspec.structs.replace(
        manifest,
        segments=(embed, msgspec.structs.replace(first, last_block=2), msgspec.structs.replace(second, first_block=2,
                  last_block=4), msgspec.structs.replace(head, first_block=4, last_block=4)),
        model=msgspec.structs.replace(manifest.model, blocks=4),
    )  # fmt: skip
    assert [exact_cut(grouped, 1, blocks) for blocks in range(5)] == [3, 3, 2, 2, 1], "a segment is gone through whole"


def test_what_blocks_share_is_all_before_the_second_cut_or_all_behind():
    manifest = Toy(shared=True).manifest()
    assert [exact_cut(manifest, 1, blocks) for blocks in range(4)] == [3, 3, 1, 1]


def test_a_head_without_units_is_trained_by_its_own_gradient():
    toy = Toy()
    steps, runtime = stepper(toy)
    found = steps.along(toy.tokens, toy.labels, toy.weights, {}, "head", WEIGHTS)
    assert runtime.ran[-1] == "head.vjp"
    np.testing.assert_array_equal(found.jvp, np.zeros((K, B)))
    np.testing.assert_allclose(found.gradients[HEAD], gradients(toy, WEIGHTS / 4)[HEAD], rtol=1e-4, atol=1e-6)
    assert cut_for(toy.manifest(), []) == 3


def test_low_memory_holds_one_program_at_a_time(toy):
    steps, runtime = stepper(toy, low_memory=True)
    steps.along(toy.tokens, toy.labels, toy.weights, draw(toy), "block.0")
    assert runtime.most_loaded == 1


def test_cuts_and_what_they_cost():
    manifest = Toy().manifest()
    first, second = cuts(manifest, "numpy")
    assert (first.index, first.name, first.first_block) == (1, "block.0", 0)
    assert (first.step.flops, first.suffix.flops) == (1 + 2 + 2 + 2, 6)
    assert (second.step.flops, second.suffix.flops) == (1 + 1 + 2 + 2, 4)
    assert (second.step.load_bytes, second.step.peak_bytes) == (60, 200)
    assert cut_for(manifest, [0]) == 1
    assert cut_for(manifest, [1]) == 2
    assert cut_for(manifest, [1, 0]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("torchscript", B, T, K), "no programs for torchscript; it has numpy"),
        (("numpy", 9, T, K), "no programs for batch x length 9x4; it has 3x4"),
        (("numpy", B, T, 7), "no programs with 7 directions; it has 2"),
    ],
)
def test_a_bundle_says_what_it_offers(arguments, message):
    with pytest.raises(BundleError, match=message):
        Chain(Toy().manifest(), *arguments)


def test_cuts_that_are_none():
    toy = Toy()
    steps, _ = stepper(toy)
    with pytest.raises(BundleError, match=r"no tangent can start at embed; the bundle's cuts: block.0, block.1"):
        steps.along(toy.tokens, toy.labels, toy.weights, {}, "embed")
    for cut in ("block.7", 4, -1):
        with pytest.raises(BundleError, match="has no segment"):
            steps.prefix(toy.tokens, toy.weights, cut)
    with pytest.raises(BundleError, match=r"no unit 2; it has 2"):
        cut_for(toy.manifest(), [2])
    spec = toy.manifest().runtimes["numpy"]
    kept = tuple(p for p in spec.programs if p.segment != "head" or p.kind == "dual")
    runtimes = {"numpy": msgspec.structs.replace(spec, programs=kept)}
    chain = Chain(msgspec.structs.replace(toy.manifest(), runtimes=runtimes), "numpy", B, T, K)
    with pytest.raises(BundleError, match=r"no plain program of head for numpy, 3x4, K=2; it has dual"):
        chain.forward()


def test_wrong_inputs_are_one_clear_line():
    toy = Toy()
    steps, _ = stepper(toy)
    tokens, labels, weights, directions = toy.tokens, toy.labels, toy.weights, draw(toy)

    def refused(message, *, tokens=tokens, labels=labels, weights=weights, directions=directions, example_weight=None):
        with pytest.raises(ProgramInputError, match=message):
            steps.along(tokens, labels, weights, directions, "block.0", example_weight)

    refused(r"input_ids, an input of embed.plain \[3x4\], is missing; expected int64 \[3, 4\]", tokens={})
    refused(r"must be int64, got int32: convert it with .astype", tokens={"input_ids": np.zeros((B, T), np.int32)})
    refused(r"must have shape \[3, 4\], got \[3, 9\]", tokens={"input_ids": np.zeros((B, 9), np.int64)})
    refused(r"labels must be from 0 to 1; got 0 to 2", labels=np.array([0, 1, 2]))
    refused(r"labels must be from 0 to 1; got -100 to 1", labels=np.array([0, 1, -100]))
    refused(r"labels, .* must have shape \[3\], got \[2\]", labels=np.array([0, 1]))
    refused(r"the weight classifier, .* is missing", weights={k: w for k, w in weights.items() if k != HEAD})
    refused(r"the weight block.0.A, .*must be float32", weights={k: w.astype(float) for k, w in weights.items()})
    refused(r"the direction of block.0.A, .*must have shape \[6, 1, 5\]", directions={"block.0.A": np.zeros((3, 1, H))})
    refused(r"'nothing', which the bundle does not train", directions={"nothing": np.zeros(1)})
    refused(r"exact gradient of classifier", directions=draw(toy, head=True))
    refused(r"example_weight must have shape \[3\], got \[2\]", example_weight=[1, 1])
    refused(r"not all zero", example_weight=[0, 0, 0])
    refused(r"finite", example_weight=[1, float("nan"), 1])


def test_a_prefix_goes_with_its_cut():
    toy = Toy()
    steps, _ = stepper(toy)
    with pytest.raises(ProgramInputError, match=r"from block.1 on needs the hidden states"):
        steps.forward(toy.tokens, toy.labels, toy.weights, cut="block.1")
    assert steps.prefix(toy.tokens, toy.weights, 0) is None
    with pytest.raises(ProgramInputError, match="nothing lies before embed"):
        steps.forward(toy.tokens, toy.labels, toy.weights, hidden=np.zeros((B, T, H), np.float32))


def test_estimates_average_over_directions_and_weigh_examples():
    jvp = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    direction = np.arange(4 * 2, dtype=np.float32).reshape(4, 1, 2)
    found = estimate(jvp, {"w": direction}, [1, 3])["w"]
    terms = [1 * direction[0] / 4, 2 * direction[1] * 3 / 4, 3 * direction[2] / 4, 4 * direction[3] * 3 / 4]
    np.testing.assert_allclose(found, sum(terms) / 2)
    assert found.shape == (1, 2)
    with pytest.raises(ProgramInputError, match="K x batch = 2 x 2 rows, got 3"):
        estimate(jvp, {"w": direction[:3]})
    with pytest.raises(ProgramInputError, match=r"must have shape \[K, batch\]"):
        estimate(jvp[0], {"w": direction})


def test_estimates_approach_the_gradient():
    toy = Toy()
    steps, _ = stepper(toy)
    total = {name: np.zeros(value.shape) for name, value in toy.weights.items() if name != HEAD}
    rounds = 400
    hidden = steps.prefix(toy.tokens, toy.weights, "block.0")
    for iteration in range(rounds):
        directions = draw(toy, iteration=iteration)
        found = steps.along(toy.tokens, toy.labels, toy.weights, directions, "block.0", hidden=hidden)
        for name, part in estimate(found.jvp, directions).items():
            total[name] += part / rounds
    exact = steps.exact(toy.tokens, toy.labels, toy.weights, "block.0").gradients
    mean, true = (np.concatenate([found[name].ravel() for name in total]) for found in (total, exact))
    assert mean @ true / np.linalg.norm(mean) / np.linalg.norm(true) > 0.97


def test_directions_are_the_units_own_whatever_else_is_drawn():
    toy = Toy()
    alone, both = draw(toy, [1]), draw(toy, head=True)
    assert alone.keys() == {"block.1.A", "block.1.B"}
    assert both.keys() == set(toy.weights)
    assert both[HEAD].shape == (K * B, C, H)
    for name, value in alone.items():
        np.testing.assert_array_equal(value, both[name])

"""Steps over a model small enough to write out by hand: embed, two blocks, head, in numpy.

Its runtime is a real one: programs must be loaded before they run, and it answers with what their specs name. What a
step gives is compared with differences of the whole model in double precision.
"""

import msgspec
import numpy as np
import pytest

from edge_client import BundleError, ProgramInputError
from edge_client.chain import Chain, cut_for, cuts
from edge_client.estimates import directions_for, estimate
from edge_client.manifest import (
    Adapter,
    FileSpec,
    Manifest,
    Model,
    Parameter,
    ProgramSpec,
    RuntimeSpec,
    Segment,
    TensorSpec,
    Unit,
)
from edge_client.steps import Stepper

B, T, H, C, V, K = 3, 4, 5, 2, 7, 2
SEGMENTS = ("embed", "block.0", "block.1", "head")
HEAD = "classifier"


def owner(segment: str, *, shared: bool) -> str:
    """The name of the low-rank pair that a block adds to its frozen weight."""
    return "shared" if shared else segment


class Toy:
    """h = E[ids]; h = tanh(h W' + h A' B') per block; logits = (mean of h over tokens) C'; cross entropy."""

    def __init__(self, *, shared: bool = False) -> None:
        random = np.random.default_rng(0)
        self.shared = shared
        self.frozen = {name: random.normal(size=(H, H)) * 0.5 for name in ("block.0", "block.1")}
        self.frozen["embed"] = random.normal(size=(V, H))
        names = ["shared"] if shared else ["block.0", "block.1"]
        self.weights = {
            key: random.normal(size=shape).astype(np.float32)
            for name in names
            for key, shape in ((f"{name}.A", (1, H)), (f"{name}.B", (H, 1)))
        }
        self.weights[HEAD] = random.normal(size=(C, H)).astype(np.float32)
        self.tokens = {
            "input_ids": random.integers(0, V, (B, T)),
            "attention_mask": np.array([[1] * T, [1, 1, 0, 0], [1] * T], np.int64),
        }
        self.labels = np.array([0, 1, 1], np.int64)

    def losses(self, weights: dict) -> np.ndarray:
        """The whole model on the tokens, in double precision."""
        hidden = self.frozen["embed"][self.tokens["input_ids"]]
        for segment in SEGMENTS[1:-1]:
            hidden = self.block(segment, hidden, weights)[0]
        return self.head(hidden, weights[HEAD], self.tokens["attention_mask"], self.labels)[0]

    def block(self, segment: str, hidden, weights: dict):
        name = owner(segment, shared=self.shared)
        a, b = weights[f"{name}.A"], weights[f"{name}.B"]
        low = hidden @ a.T
        return np.tanh(hidden @ self.frozen[segment].T + low @ b.T), low, a, b

    def head(self, hidden, weight, mask, labels):
        share = (mask / mask.sum(1, keepdims=True))[..., None]
        pooled = (hidden * share).sum(1)
        logits = pooled @ weight.T
        exps = np.exp(logits - logits.max(1, keepdims=True))
        probabilities = exps / exps.sum(1, keepdims=True)
        error = probabilities - np.eye(C)[labels]
        return -np.log(probabilities[range(len(labels)), labels]), logits, error, pooled, share

    def manifest(self) -> Manifest:
        names = ["shared"] if self.shared else ["block.0", "block.1"]
        return Manifest(
            made_by="tests",
            model=Model("toy", "Toy", "seq-cls", ("no", "yes"), 2, 100),
            adapter=Adapter("lora", {}, "adapter.safetensors"),
            inputs=("input_ids", "attention_mask"),
            units=tuple(
                Unit(
                    name,
                    ("block.0", "block.1") if self.shared else (name,),
                    (Parameter(f"{name}.A", (1, H)), Parameter(f"{name}.B", (H, 1))),
                )
                for name in names
            ),
            head=(Parameter(HEAD, (C, H)),),
            segments=(
                Segment("embed", 0, 0),
                Segment("block.0", 0, 1),
                Segment("block.1", 1, 2),
                Segment("head", 2, 2),
            ),
            shapes=((B, T),),
            directions=(K,),
            tokenizer=None,
            pad_token_id=0,
            runtimes={"numpy": RuntimeSpec("none", {}, tuple(self.programs()), 0)},
            verification=(),
            files=(FileSpec("adapter.safetensors", "0" * 64, 0), FileSpec("toy", "0" * 64, 0)),
        )

    def programs(self):
        ids, mask = TensorSpec("input_ids", "int64", (B, T)), TensorSpec("attention_mask", "int64", (B, T))
        labels, weight = TensorSpec("labels", "int64", (B,)), TensorSpec("example_weight", "float32", (B,))
        hidden, gradient = (TensorSpec(name, "float32", (B, T, H)) for name in ("hidden", "gradient"))
        tangent = TensorSpec("tangent", "float32", (K * B, T, H))
        loss, logits = TensorSpec("loss", "float32", (B,)), TensorSpec("logits", "float32", (B, C))
        jvp, head_jvp = TensorSpec("jvp", "float32", (K * B,)), TensorSpec("head_jvp", "float32", (K * B,))
        head, head_v = TensorSpec("w:" + HEAD, "float32", (C, H)), TensorSpec("v:" + HEAD, "float32", (K * B, C, H))
        head_g = TensorSpec("g:" + HEAD, "float32", (C, H))

        def spec(segment, kind, inputs, outputs):
            k = K if kind in ("enter", "dual", "scalar") else 0
            cost = {"plain": 1, "enter": 2, "dual": 2, "scalar": 2, "vjp": 3}[kind]
            return ProgramSpec(
                segment, kind, B, T, k, "toy", kind, tuple(inputs), tuple(outputs), cost, 10 * cost, 100 * cost
            )

        yield spec("embed", "plain", [ids], [hidden])
        for segment in SEGMENTS[1:-1]:
            name = owner(segment, shared=self.shared)
            shapes = ((f"{name}.A", (1, H)), (f"{name}.B", (H, 1)))
            own = [TensorSpec("w:" + key, "float32", shape) for key, shape in shapes]
            move = [TensorSpec("v:" + key, "float32", (K * B, *shape)) for key, shape in shapes]
            back = [TensorSpec("g:" + key, "float32", shape) for key, shape in shapes]
            yield spec(segment, "plain", [hidden, *own], [hidden])
            yield spec(segment, "enter", [hidden, *own, *move], [hidden, tangent])
            if segment != "block.0":
                yield spec(segment, "dual", [hidden, tangent, *own, *move], [hidden, tangent])
            yield spec(segment, "vjp", [hidden, gradient, *own], [gradient, *back])
        yield spec("head", "plain", [hidden, mask, labels, head], [loss, logits])
        yield spec("head", "dual", [hidden, tangent, mask, labels, weight, head], [loss, logits, jvp, head_g])
        yield spec("head", "scalar", [hidden, tangent, mask, labels, head, head_v], [loss, logits, jvp, head_jvp])
        yield spec("head", "vjp", [hidden, mask, labels, weight, head], [loss, logits, gradient, head_g])


class ToyRuntime:
    """Runs the toy's programs; keeps account of what is loaded."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.loaded: set[str] = set()
        self.most_loaded = 0
        self.ran: list[str] = []

    def load(self, program: ProgramSpec) -> None:
        self.loaded.add(program.name)
        self.most_loaded = max(self.most_loaded, len(self.loaded))

    def release(self, program: ProgramSpec) -> None:
        self.loaded.discard(program.name)

    def run(self, program: ProgramSpec, inputs: dict) -> dict:
        assert program.name in self.loaded
        assert {name: (str(x.dtype), x.shape) for name, x in inputs.items()} == {
            spec.name: (spec.dtype, spec.shape) for spec in program.inputs
        }
        self.ran.append(f"{program.segment}.{program.kind}")
        found = {"embed": self.embed, "head": self.head}.get(program.segment, self.block)(program, inputs)
        return {spec.name: np.asarray(found[spec.name], np.float32).reshape(spec.shape) for spec in program.outputs}

    def embed(self, program: ProgramSpec, inputs: dict) -> dict:
        return {"hidden": self.toy.frozen["embed"][inputs["input_ids"]]}

    def block(self, program: ProgramSpec, inputs: dict) -> dict:
        name, frozen = owner(program.segment, shared=self.toy.shared), self.toy.frozen[program.segment]
        weights = {key[2:]: value for key, value in inputs.items() if key.startswith("w:")}
        x = inputs["hidden"]
        y, low, a, b = self.toy.block(program.segment, x, weights)
        found = {"hidden": y}
        if program.kind in ("enter", "dual"):
            dx = inputs.get("tangent", np.zeros((K * B, T, H)))
            da, db = inputs[f"v:{name}.A"], inputs[f"v:{name}.B"]
            moved = dx @ a.T + np.einsum("nth,nrh->ntr", np.tile(x, (K, 1, 1)), da)
            dz = dx @ frozen.T + moved @ b.T + np.einsum("ntr,nhr->nth", np.tile(low, (K, 1, 1)), db)
            found["tangent"] = np.tile(1 - y**2, (K, 1, 1)) * dz
        if program.kind == "vjp":
            gz = inputs["gradient"] * (1 - y**2)
            found |= {
                "gradient": gz @ frozen + (gz @ b) @ a,
                f"g:{name}.A": np.einsum("btr,bth->rh", gz @ b, x),
                f"g:{name}.B": np.einsum("bth,btr->hr", gz, low),
            }
        return found

    def head(self, program: ProgramSpec, inputs: dict) -> dict:
        mask, weight = inputs["attention_mask"], inputs["w:" + HEAD]
        loss, logits, error, pooled, share = self.toy.head(inputs["hidden"], weight, mask, inputs["labels"])
        found = {"loss": loss, "logits": logits}
        errors, shares = np.tile(error, (K, 1)), np.tile(share, (K, 1, 1))
        if "tangent" in inputs:
            found["jvp"] = (errors * ((inputs["tangent"] * shares).sum(1) @ weight.T)).sum(1)
        if program.kind == "scalar":
            found["head_jvp"] = np.einsum("nc,nch,nh->n", errors, inputs["v:" + HEAD], np.tile(pooled, (K, 1)))
        if "example_weight" in inputs:
            weighted = error * inputs["example_weight"][:, None]
            found |= {"g:" + HEAD: weighted.T @ pooled, "gradient": share * (weighted @ weight)[:, None]}
        return found


@pytest.fixture(params=[False, True], ids=["own weights", "shared weights"])
def toy(request) -> Toy:
    return Toy(shared=request.param)


def stepper(toy: Toy, **options) -> tuple[Stepper, ToyRuntime]:
    runtime = ToyRuntime(toy)
    return Stepper(toy.manifest(), runtime, "numpy", B, T, K, **options), runtime


def along(toy: Toy, directions: dict, k: int, example: int, step: float = 1e-5) -> float:
    """The derivative of one example's loss along its k-th direction."""
    losses = []
    for sign in (1, -1):
        moved = {name: value.astype(np.float64) for name, value in toy.weights.items()}
        for name, direction in directions.items():
            moved[name] += sign * step * direction[k * B + example]
        losses.append(toy.losses(moved)[example])
    return (losses[0] - losses[1]) / (2 * step)


def table(toy: Toy, directions: dict) -> np.ndarray:
    return np.array([[along(toy, directions, k, example) for example in range(B)] for k in range(K)])


def gradients(toy: Toy, shares: np.ndarray, step: float = 1e-5) -> dict:
    """The gradient of the weighted loss, weight by weight."""
    found = {name: np.zeros(value.shape) for name, value in toy.weights.items()}
    for name, gradient in found.items():
        for index in np.ndindex(*gradient.shape):
            losses = []
            for sign in (1, -1):
                moved = {key: value.astype(np.float64) for key, value in toy.weights.items()}
                moved[name][index] += sign * step
                losses.append(toy.losses(moved) @ shares)
            gradient[index] = (losses[0] - losses[1]) / (2 * step)
    return found


def draw(toy: Toy, units=None, **options) -> dict:
    manifest = toy.manifest()
    chosen = range(len(manifest.units)) if units is None else units
    return directions_for(manifest, chosen, seed=5, directions=K, batch=B, **options)


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
    found = steps.dual(toy.tokens, toy.labels, toy.weights, directions, 1, WEIGHTS)
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
        found = steps.dual(toy.tokens, toy.labels, toy.weights, directions, cut)
        np.testing.assert_allclose(found.jvp, expected, rtol=1e-4, atol=1e-5)


def test_a_kept_prefix_gives_the_same_step_and_frees_its_programs():
    toy = Toy()
    steps, runtime = stepper(toy)
    directions = draw(toy, [1])
    whole = steps.dual(toy.tokens, toy.labels, toy.weights, directions, "block.1")
    hidden = steps.prefix(toy.tokens, toy.weights, "block.1")
    steps.release_prefix("block.1")
    assert not {name for name in runtime.loaded if name.startswith(("embed", "block.0"))}
    runtime.ran.clear()
    found = steps.suffix(hidden, toy.tokens, toy.labels, toy.weights, directions, "block.1")
    assert runtime.ran == ["block.1.enter", "head.dual"]
    np.testing.assert_array_equal(found.jvp, whole.jvp)
    np.testing.assert_array_equal(found.gradients[HEAD], whole.gradients[HEAD])
    steps.release()
    assert not runtime.loaded


def test_scalars_move_the_head_on_its_own():
    toy = Toy()
    steps, runtime = stepper(toy)
    directions = draw(toy, [1], head=True)
    found = steps.scalars(toy.tokens, toy.labels, toy.weights, directions, "block.1")
    assert runtime.ran[-1] == "head.scalar"
    units = {name: value for name, value in directions.items() if name != HEAD}
    np.testing.assert_allclose(found.jvp, table(toy, units), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.head_jvp, table(toy, {HEAD: directions[HEAD]}), rtol=1e-4, atol=1e-5)
    hidden = steps.prefix(toy.tokens, toy.weights, "block.1")
    again = steps.scalars(toy.tokens, toy.labels, toy.weights, directions, "block.1", hidden=hidden)
    np.testing.assert_array_equal(again.head_jvp, found.head_jvp)


def test_scalars_at_the_head():
    toy = Toy()
    steps, _ = stepper(toy)
    directions = draw(toy, [], head=True)
    found = steps.scalars(toy.tokens, toy.labels, toy.weights, directions, "head")
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
        steps.dual(toy.tokens, toy.labels, toy.weights, draw(toy), "block.1")


def test_a_head_without_units_is_trained_by_its_own_gradient():
    toy = Toy()
    steps, runtime = stepper(toy)
    found = steps.dual(toy.tokens, toy.labels, toy.weights, {}, "head", WEIGHTS)
    assert runtime.ran[-1] == "head.vjp"
    np.testing.assert_array_equal(found.jvp, np.zeros((K, B)))
    np.testing.assert_allclose(found.gradients[HEAD], gradients(toy, WEIGHTS / 4)[HEAD], rtol=1e-4, atol=1e-6)
    assert cut_for(toy.manifest(), []) == 3


def test_low_memory_holds_one_program_at_a_time(toy):
    steps, runtime = stepper(toy, low_memory=True)
    steps.dual(toy.tokens, toy.labels, toy.weights, draw(toy), "block.0")
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
        steps.dual(toy.tokens, toy.labels, toy.weights, {}, "embed")
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
            steps.dual(tokens, labels, weights, directions, "block.0", example_weight)

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
        found = steps.suffix(hidden, toy.tokens, toy.labels, toy.weights, directions, "block.0")
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

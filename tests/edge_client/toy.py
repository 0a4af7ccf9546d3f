"""A model small enough to write out by hand: embed, two blocks, head, in numpy.

Its runtime is a real one: programs must be loaded before they run, and it answers with what their specs name.
"""

import numpy as np

from edge_client.bundle.manifest import (
    AdapterSpec,
    FileSpec,
    Manifest,
    ModelSpec,
    Parameter,
    ProgramSpec,
    RuntimeSpec,
    Segment,
    TensorSpec,
    Unit,
)
from edge_client.gradient.estimate import directions_for
from edge_client.step.stepper import Stepper

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
            model=ModelSpec("toy", "Toy", "seq-cls", ("no", "yes"), 2, 100),
            adapter=AdapterSpec("lora", {}, "adapter.safetensors"),
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
        self.aside: list[str] = []

    def load(self, program: ProgramSpec) -> None:
        self.loaded.add(program.name)
        self.most_loaded = max(self.most_loaded, len(self.loaded))

    def set_aside(self, program: ProgramSpec) -> None:
        self.aside.append(f"{program.segment}.{program.kind}")

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

"""A client whose gradients are known: a logistic regression whose weights are a bundle's units and head."""

from dataclasses import dataclass

import numpy as np

from edge_client.bundle.manifest import AdapterSpec, Manifest, ModelSpec, Parameter, Segment, Unit
from edge_client.gradient.drawing import combine, step_directions
from edge_client.wire.scalars import Participant, ScalarReport, as_published

STEPS = 500


def parameters(name, size):
    """Two, so that units are split into tensors; one where there is one weight."""
    shapes = [(size // 2,), (size - size // 2, 1)] if size > 1 else [(1,)]
    return tuple(Parameter(f"{name}.{number}", shape) for number, shape in enumerate(shapes))


def manifest_of(units, head):
    return Manifest(
        made_by="test",
        model=ModelSpec("logistic", "none", "seq-cls", ("no", "yes"), 1, 0),
        adapter=AdapterSpec("lora", {}, "adapter.safetensors"),
        inputs=(),
        units=tuple(Unit(f"u{i}", ("block.0",), parameters(f"u{i}", size)) for i, size in enumerate(units)),
        head=parameters("head", head) if head else (),
        segments=(Segment("embed", 0, 0), Segment("block.0", 0, 1), Segment("head", 1, 1)),
        shapes=((4, 8),),
        directions=(1,),
        tokenizer=None,
        pad_token_id=0,
        runtimes={},
        verification=(),
        files=(),
    )


@dataclass
class Client:
    """Examples of a logistic regression, and a client's steps on them."""

    manifest: Manifest
    inputs: np.ndarray
    """[B, D]"""
    labels: np.ndarray
    """[B], -1 or 1"""
    weights: np.ndarray
    """[D], of all units and the head in the manifest's order"""
    examples: int
    """The first ones of the batch; the others fill it up."""

    @property
    def parts(self):
        """Return where the weights of each unit and of the head stand."""
        groups = [unit.parameters for unit in self.manifest.units] + [self.manifest.head]
        ends = np.cumsum([sum(p.size for p in group) for group in groups])
        return [slice(end - sum(p.size for p in group), end) for end, group in zip(ends, groups, strict=True)]

    def losses(self, weights):
        return np.log1p(np.exp(-self.labels * np.sum(self.inputs * weights, axis=-1)))

    def gradients(self):
        """[B, D]"""
        pull = -self.labels / (1 + np.exp(self.labels * (self.inputs @ self.weights)))
        return pull[:, None] * self.inputs

    def derivatives(self, directions):
        """[K, B] along [K, B, D], by a complex step: to the last digits, and not out of `gradients`."""
        return self.losses(self.weights + 1e-30j * directions).imag / 1e-30

    def truth(self):
        return self.gradients()[: self.examples].mean(axis=0)

    def rows(self, training):
        """a_r, numbered as `orthogonal` numbers them; see above."""
        if not training.per_example:
            return np.repeat(self.truth()[None], training.directions, axis=0)
        shares = (np.arange(training.batch) < self.examples) / self.examples
        return np.repeat(self.gradients() * shares[:, None], training.directions, axis=0)

    def flat(self, found):
        """Gradients or directions by name as one vector, or rows of vectors; zero where there are none."""
        some = next(iter(found.values()))
        every = [p for unit in self.manifest.units for p in unit.parameters] + list(self.manifest.head)
        rows = some.ndim - len(next(p.shape for p in every if p.name in found))
        lead = some.shape[:rows]
        return np.concatenate(
            [np.reshape(found.get(p.name, np.zeros((*lead, p.size))), (*lead, p.size)) for p in every], axis=-1
        )

    def told(self, training, jvp):
        """Each example's derivative, or the mean of those that count."""
        return (jvp if training.per_example else jvp[:, : self.examples].mean(1, keepdims=True)).astype(np.float32)

    def report(self, training, units, seed, iteration):
        directions = step_directions(self.manifest, units, seed, training, iteration)
        drawn = self.flat(directions).reshape(training.directions, training.rows, -1).astype(np.float64)
        drawn = np.repeat(drawn, training.batch // training.rows, axis=1)
        of_head = np.zeros_like(drawn)
        of_head[..., self.parts[-1]] = drawn[..., self.parts[-1]]
        head = self.told(training, self.derivatives(of_head)) if training.head != "exact" else None
        jvp = self.told(training, self.derivatives(drawn - of_head))
        return ScalarReport(float(self.losses(self.weights).mean()), self.examples, jvp, head), directions

    def gradient(self, training, units, seed, iteration):
        """As in mode epoch."""
        report, drawn = self.report(training, units, seed, iteration)
        return combine(report, drawn, self.manifest, training)

    def participant(self, training, units, seed, iteration):
        """As in mode iteration: what the others know of the step."""
        return Participant(seed, units, as_published(self.report(training, units, seed, iteration)[0]))


def client(rng, units=(8, 4), head=4, batch=4, examples=None, agree=False, cancel=False):
    """One with examples at random, all the same, or of the same text under both labels."""
    size = sum(units) + head
    inputs, labels = rng.normal(size=(batch, size)) + 0.7, rng.choice([-1.0, 1.0], size=batch)
    if agree or cancel:
        inputs[:], labels[:] = inputs[0], labels[0]
    if cancel:
        labels[1::2] *= -1
    weights = np.zeros(size) if cancel else rng.normal(size=size) / size
    return Client(manifest_of(units, head), inputs, labels, weights, examples or batch)


def estimates(one, training, units, rng, steps=STEPS):
    """[steps, D]"""
    seed = int(rng.integers(2**63))
    return np.array([one.flat(one.gradient(training, units, seed, i)) for i in range(steps)])

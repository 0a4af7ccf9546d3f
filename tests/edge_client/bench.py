"""Share what tests of a device's steps work on: a bundle with an open runtime, and a few texts."""

import numpy as np

from edge_client.data.batches import Batches
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.estimators.registry import estimator_for
from edge_client.step.passes import Passes
from edge_client.tasks.classification import Classification
from edge_client.training.epoch import TrainingState, train

TEXTS = ("it is a train", "the ice is on the lake", "is it?", "a b c", "the lake", "on it", "no ice, no train!")
EXAMPLES = [Example(text, None, number % 3) for number, text in enumerate(TEXTS)]
CLASSES = Classification()


class Bench:
    """A bundle with an open runtime, and what a task needs of them."""

    def __init__(self, bundle, runtime):
        self.manifest = bundle.manifest
        self.runtime = runtime
        self.bundle = bundle
        random = np.random.default_rng(0)
        self.weights = {
            name: value + 0.3 * random.standard_normal(value.shape, dtype=np.float32)
            for name, value in sorted(bundle.initial_adapter().items())  # a file has no order
        }

    def passes(self, task, **options):
        return Passes(self.manifest, self.runtime, task, **options)

    def batches(self, task, examples=EXAMPLES):
        encoder = TextEncoder(self.bundle.tokenizer(), self.manifest, task.training.batch, task.training.length)
        return Batches(examples, encoder, CLASSES.encode, task.seed)

    def gradient(self, task, iteration=0, batch=0, **options):
        estimator = estimator_for(self.manifest, task, self.passes(task, **options))
        return estimator.gradient(self.batches(task).at(batch), self.weights, iteration)

    def round(self, task, state=None, **options):
        estimator = estimator_for(self.manifest, task, self.passes(task, **options))
        return list(train(task, self.manifest, estimator, self.batches(task), state or TrainingState(self.weights)))


def flat(gradients, names=None) -> np.ndarray:
    return np.concatenate([gradients[name].reshape(-1) for name in sorted(names or gradients)])


def cosine(a, b) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

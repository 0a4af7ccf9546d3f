"""Training on the JVM gives the update that it gives here, for the same task on the same rows."""

import json
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import asdict, replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FILE_NAME
from edge_client.data.batches import Batches
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import examples_for
from edge_client.data.sources import open_data
from edge_client.estimators.registry import estimator_for
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.passes import Passes
from edge_client.tasks.classification import Classification
from edge_client.training.epoch import Judged, TrainingState, evaluate, report, train, update
from edge_client.training.features import measured
from edge_client.training.optimizers import server_step
from edge_client.training.replay import changes
from edge_client.wire.scalars import Participant, StepRecord, as_published, decode_report, encode_record, encode_report
from tests.android import environment, java
from tests.edge_client.conftest import ROWS

CLASSES = Classification()
CLOSE = 1e-5
ROUNDS = {
    "forward": {},
    "apart": {"head": "apart", "head_learning_rate": 0.3},
    "joint": {"head": "joint", "kind": "rademacher"},
    "orthogonal": {"head": "apart", "kind": "orthogonal", "directions": 2},
    "shared": {"per_example": False, "directions": 2},
    "turns": {"directions": 4, "head": "exact"},
    "turns-of-the-head": {"directions": 10, "head": "apart", "units": [0, 1, 2, 3], "cut": 1},
    "exact": {"estimator": "exact"},
    "exact-adamw": {"estimator": "exact", "optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
    "central": {"estimator": "central", "head": "joint", "directions": 2, "sigma": 1e-1},  # divides losses' rounding
    "mixed": {"estimator": "mixed", "units": [0, 1, 3], "cut": 1},
    "mixed-head-alone": {"estimator": "mixed", "units": [0, 3], "cut": 1, "exact_blocks": 0, "head": "apart"},
    "mixed-all-exact": {"estimator": "mixed", "units": [0, 3], "cut": 1, "exact_blocks": 2},
    "mixed-nothing-before": {"estimator": "mixed", "units": [2, 3], "cut": 2, "directions": 4},
    "mixed-shared-in-turns": {"estimator": "mixed", "units": [0, 2], "cut": 1, "directions": 4, "per_example": False},
    "mixed-pieces": {
        "estimator": "mixed",
        "units": [0, 1, 2, 3],
        "cut": 1,
        "batch": 2,
        "directions": 6,
        "kind": "orthogonal",
    },
    "adamw": {"optimizer": "adamw", "learning_rate": 0.01, "iterations": 5},
    "decay": {"weight_decay": 0.05, "units": [0, 3], "cut": 1},
    "head-alone": {"units": [], "cut": 3},
    "pieces": {"batch": 2, "directions": 2},
    "pieces-exact": {"batch": 1, "estimator": "exact"},
}
ITERATIONS = {
    "numbers": {"head": "apart"},
    "numbers-exact-head": {"head": "exact", "kind": "rademacher"},
    "numbers-shared": {"head": "apart", "per_example": False, "directions": 2},
    "numbers-central": {"estimator": "central", "head": "joint", "directions": 2, "sigma": 1e-2, "per_example": False},
}


class Bench:
    """A bundle, its rows, and a noisy start, so that no gradient is zero."""

    def __init__(self, folder, runtime, where):
        self.bundle = Bundle.open(folder)
        self.manifest = self.bundle.manifest
        self.runtime = runtime
        self.where = where
        random = np.random.default_rng(0)
        self.start = {
            name: value + 0.3 * random.standard_normal(value.shape, dtype=np.float32)
            for name, value in sorted(self.bundle.initial_adapter().items())  # a file has no order
        }
        save_file(self.start, where / "start.safetensors")
        (where / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        self.examples = examples_for(open_data(where / "rows.jsonl"), CLASSES.check(self.manifest.model.labels))

    def run(self, classes, cases):
        """Train on the JVM."""
        (self.where / "cases.json").write_text(json.dumps(cases))
        command = java(classes, "dev.spry.core.training.TrainMain", self.bundle.folder, self.where)
        ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stderr

    def parts(self, task):
        training = task.training
        encoder = TextEncoder(self.bundle.tokenizer(), self.manifest, training.batch, training.length)
        passes = Passes(self.manifest, self.runtime, task)
        batches = Batches(self.examples, encoder, CLASSES.encode, task.seed)
        return passes, estimator_for(self.manifest, task, passes), batches

    def round(self, task):
        """Here: the update, and what it says beside its tensors."""
        _, estimator, batches = self.parts(task)
        *_, state = train(task, self.manifest, estimator, batches, TrainingState(self.start))
        models = self.start, state.weights
        passes, *_ = self.parts(replace(task, batch=task.training.batch))
        scores = evaluate(passes.logits, self.examples, batches.encoder, CLASSES, models)
        told = measured(passes.features, self.examples, batches.encoder, CLASSES, self.start, task.seed)
        said = report(state, judged=Judged(CLASSES, *scores), measured=told.rows)
        return update(task, self.manifest, state) | told.tensors, said

    def iterations(self, task, count=3):
        """Here: the reports of this task, the records of it and another client, and the weights that they lead to."""
        _, estimator, batches = self.parts(task)
        weights, state, log, reports = dict(self.start), {}, b"", []
        head = frozenset(p.name for p in self.manifest.head)
        for iteration in range(count):
            found = estimator.report(batches.at(iteration), weights, iteration)
            reports.append(found)
            published = as_published(found)
            other = Participant(77 + iteration, (0, 3), published)
            own = Participant(task.seed, tuple(task.units), published)
            record = StepRecord(iteration + 1, task.round, iteration, (own, other), found.head_gradient)
            server_step(weights, changes(record, self.manifest, task.training), state, task.optimizers, head)
            log += encode_record(record, self.manifest, task.training)
        return reports, log, weights | state


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    """Opens benches on copies of bundles, of which one program takes 1000 bytes, and 100 while it runs."""
    with ExitStack() as opened:

        def bench(bundle):
            folder = tmp_path_factory.mktemp("bundle") / "bundle"
            shutil.copytree(bundle, folder)
            manifest = json.loads((folder / FILE_NAME).read_text())
            for program in manifest["runtimes"]["onnx"]["programs"]:
                program |= {"load_bytes": 1000, "peak_bytes": 100}
            (folder / FILE_NAME).write_text(json.dumps(manifest))
            runtime = opened.enter_context(open_runtime("onnx", folder, threads=1))
            return Bench(folder, runtime, tmp_path_factory.mktemp("cases"))

        yield bench


def case(name, task, **more):
    return {"name": name, "task": asdict(task), **more}


def test_a_round_gives_the_same_update(classes, benches, trainable, changed):
    bench = benches(trainable)
    tasks = {name: changed(**settings, seed=11) for name, settings in ROUNDS.items()}
    memory = {"pieces": 1500, "apart": 1500, "shared": 10_000}  # one program at a time; few prefixes
    bench.run(classes, [case(name, task, memory=memory.get(name, -1)) for name, task in tasks.items()])
    for name, task in tasks.items():
        expected, told = bench.round(task)
        found = load_file(bench.where / f"{name}.safetensors")
        assert found.keys() == expected.keys(), name
        for parameter, value in expected.items():
            assert (value != bench.start.get(parameter, 0)).any(), (name, parameter)
            np.testing.assert_allclose(found[parameter], value, rtol=0, atol=CLOSE, err_msg=f"{name} {parameter}")
        with safe_open(bench.where / f"{name}.safetensors", "numpy") as file:
            says = json.loads(file.metadata()["report"])
        for field in ("examples", "steps", "held_back", "right_global", "right_personal", "measured"):
            assert says[field] == getattr(told, field), (name, field)
        assert says["loss"] == pytest.approx(told.loss, abs=CLOSE), name


def test_iterations_give_the_same_numbers_and_weights(classes, benches, trainable, changed):
    bench = benches(trainable)
    tasks = {name: changed(mode="iteration", **settings, seed=12) for name, settings in ITERATIONS.items()}
    here = {name: bench.iterations(task) for name, task in tasks.items()}
    for name, (_, log, _) in here.items():
        (bench.where / f"{name}.records").write_bytes(log)
    bench.run(classes, [case(name, task) for name, task in tasks.items()])
    for name, task in tasks.items():
        reports, _, weights = here[name]
        for iteration, computed in enumerate(reports):
            sent = (bench.where / f"{name}.{iteration}.report").read_bytes()
            found = decode_report(sent, bench.manifest, task.training)
            expected = decode_report(encode_report(computed), bench.manifest, task.training)
            assert found.examples == expected.examples
            assert found.loss == pytest.approx(expected.loss, abs=CLOSE)
            for part in ("jvp", "head_jvp", "head_gradient"):
                one, other = getattr(found, part), getattr(expected, part)
                assert (one is None) == (other is None), (name, part)
                if other is not None:  # halves keep three digits
                    close = CLOSE if part == "head_gradient" else 1e-3 * np.abs(other).max(initial=0)
                    np.testing.assert_allclose(one, other, rtol=0, atol=close, err_msg=f"{name} {part}")
        found = load_file(bench.where / f"{name}.safetensors")
        assert found.keys() == weights.keys()
        for parameter, value in weights.items():
            np.testing.assert_allclose(found[parameter], value, rtol=0, atol=CLOSE, err_msg=f"{name} {parameter}")


def test_directions_at_bottlenecks(classes, benches, narrow, changed):
    bench = benches(narrow)
    names = ("forward", "apart", "orthogonal", "turns", "turns-of-the-head", "exact", "central", "decay", "pieces")
    tasks = {name: changed(**ROUNDS[name], seed=14) for name in names}
    bench.run(classes, [case(name, task, memory=1500 if name == "pieces" else -1) for name, task in tasks.items()])
    for name, task in tasks.items():
        expected, _ = bench.round(task)
        found = load_file(bench.where / f"{name}.safetensors")
        assert found.keys() == expected.keys(), name
        for parameter, value in expected.items():
            assert (value != bench.start.get(parameter, 0)).any(), (name, parameter)
            close = CLOSE * max(1, np.abs(value).max())
            np.testing.assert_allclose(found[parameter], value, rtol=0, atol=close, err_msg=f"{name} {parameter}")

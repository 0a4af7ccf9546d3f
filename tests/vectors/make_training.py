"""Writes training.json: what the Python client computes between two programs, for clients in other languages.

    python tests/vectors/make_training.py

    orders        of a round's batches
    local         optimizer steps of mode epoch
    server        optimizer steps of mode iteration
    safetensors   a file and what it holds
    replay        published records, and the weights that they lead to

    plans         the programs that a task loads, and how they share some memory
    clipping      updates that go no further than so much
    trials        what goes into a program that is tried, and how far results are off what was noted

Seeds are strings, since not every JSON reader keeps 64-bit integers; bytes are base64; values are decimals that read
back to exactly one float32.
"""

import base64
import itertools
import json
from dataclasses import asdict
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save

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
    write,
)
from edge_client.data.batches import shuffled
from edge_client.errors import SpryError
from edge_client.runtimes import trials
from edge_client.runtimes.runtime import Runtime
from edge_client.training.optimizers import local_step, server_step
from edge_client.training.replay import replay
from edge_client.training.server_optimizers import SERVER_OPTIMIZERS
from edge_client.training.session import plan_for, programs_of
from edge_client.wire.clipping import changes_of, clipped, length_of
from edge_client.wire.protocol import ServerOptimizer, ServerOptimizers, Task, Training
from edge_client.wire.scalars import Participant, ScalarReport, StepRecord, decode_records, encode_record

PATH = Path(__file__).with_name("training.json")
ORDERS = [(1, 0, 0), (2, 1, 3), (7, 2**64 - 1, 1), (40, 0x0123456789ABCDEF, 2)]
LOCAL = [
    {"optimizer": "sgd", "learning_rate": 0.1},
    {"optimizer": "sgd", "learning_rate": 0.3, "weight_decay": 0.05},
    {"optimizer": "adamw", "learning_rate": 0.01},
    {"optimizer": "adamw", "learning_rate": 0.2, "weight_decay": 0.1},
]
REPLAYS = [
    {"head": "apart"},
    {"head": "exact", "kind": "rademacher"},
    {"head": "joint", "directions": 2},
    {"head": "apart", "per_example": False, "directions": 2},
    {"head": "apart", "kind": "orthogonal", "directions": 2},
    {"head": "apart", "directions": 130},  # 260 derivatives: more than a byte counts
]
UNITS = (
    Unit("first", ("block.0",), (Parameter("first.a", (2, 3)), Parameter("first.b", (3,)))),
    Unit("second", ("block.0", "block.1"), (Parameter("second.a", (1, 5)), Parameter("second.b", (2, 1)))),
    Unit("third", ("block.1",), (Parameter("third.a", (130,)),)),
)
PLANS = [  # of the task, of its training, memory
    ({"units": [1], "cut": 1}, {}, None),
    ({"units": [2], "cut": 2}, {"directions": 4}, 10_000),
    ({"units": [], "cut": 3}, {}, 900),
    ({"units": [0, 2], "cut": 1, "batch": 1}, {"head": "apart", "directions": 3}, 1500),
    ({"units": [2], "cut": 2}, {"estimator": "exact"}, 400),
    ({"units": [2], "cut": 2, "batch": 3}, {"estimator": "central", "head": "joint"}, 700),
    ({"units": [2], "cut": 2}, {}, 300),
    ({"units": [2], "cut": 0}, {}, None),
    ({"units": [2], "cut": 2}, {"length": 9}, None),
    ({"units": [2], "cut": 2}, {"estimator": "second-order"}, None),
    ({"units": [0, 1], "cut": 1}, {"estimator": "mixed"}, 900),  # the second is in both blocks
    ({"units": [0, 2], "cut": 1}, {"estimator": "mixed", "exact_blocks": 2, "directions": 2}, None),
    ({"units": [2], "cut": 2}, {"estimator": "mixed", "exact_blocks": 0, "head": "apart"}, 300),
]
HEAD = (Parameter("head.weight", (3, 2)), Parameter("head.bias", (3,)))


def programs():
    """Every kind that a segment can have, each of other sizes."""
    for number, (segment, (batch, length), directions) in enumerate(
        itertools.product(SEGMENTS, ((2, 4), (1, 4)), (0, 1, 2))
    ):
        last = segment.name == "head"
        carried = ("enter", "dual", "scalar") if last else ("enter", "dual")
        kinds = carried if directions else ("plain", "vjp")
        for kind in kinds if segment.name != "embed" else kinds[: 1 - min(directions, 1)]:
            where = segment.name, kind, batch, length, directions
            sizes = 10 * number, 100 + 10 * number, 50 + number
            yield ProgramSpec(*where, "programs", f"{kind}{number}", (), (), *sizes)


SEGMENTS = (Segment("embed", 0, 0), Segment("block.0", 0, 1), Segment("block.1", 1, 2), Segment("head", 2, 2))
MANIFEST = Manifest(
    made_by="vectors",
    model=ModelSpec("tiny", "none", "seq-cls", ("a", "b", "c"), 2, 1),
    adapter=AdapterSpec("lora", {}, "adapter.safetensors"),
    inputs=("input_ids",),
    units=UNITS,
    head=HEAD,
    segments=SEGMENTS,
    shapes=((2, 4), (1, 4)),
    directions=(1, 2),
    tokenizer=None,
    pad_token_id=0,
    runtimes={"onnx": RuntimeSpec("none", {}, tuple(programs()), 0)},
    verification=(),
    files=(FileSpec("adapter.safetensors", "", 0), FileSpec("programs", "", 0)),
)


def vectors():
    random = np.random.default_rng(5)
    return {
        "orders": [
            {"count": count, "seed": str(seed), "epoch": epoch, "order": shuffled(count, seed, epoch)}
            for count, seed, epoch in ORDERS
        ],
        "local": [local(settings, random) for settings in LOCAL],
        "server": [server(kind, random) for kind in SERVER_OPTIMIZERS],
        "safetensors": safetensors(random),
        "manifest": json.loads(write(MANIFEST)),
        "replay": [
            replayed(settings, kind, random) for settings, kind in zip(REPLAYS, itertools.cycle(SERVER_OPTIMIZERS))
        ],
        "plans": [planned(*case, alone) for case in PLANS for alone in (False, True)],
        "clipping": [shortened(random, times) for times in (0.25, 0.999, 2.0)],
        "trials": tried(random),
    }


def local(settings, random):
    training = Training(**settings)
    weights, state = {"w": normal(random, 2, 3)}, {}
    found = {"training": asdict(training), "weights": plain(weights), "steps": []}
    for _ in range(4):
        gradient = {"w": normal(random, 2, 3)}
        local_step(weights, gradient, state, training, training.learning_rate)
        found["steps"].append({"gradients": plain(gradient), "weights": plain(weights), "state": plain(state)})
    return found


def server(kind, random):
    optimizers = ServerOptimizers(ServerOptimizer(kind, 0.01), ServerOptimizer(kind, 0.03, beta1=0.5))
    weights, state = {"w": normal(random, 2, 3), "h": normal(random, 4)}, {}
    found = {"optimizers": asdict(optimizers), "head": ["h"], "weights": plain(weights), "steps": []}
    for names in ("w", "h"), ("w",), ("h",), ("w", "h"):
        changes = {name: normal(random, *weights[name].shape) * np.float32(0.1) for name in names}
        server_step(weights, changes, state, optimizers, frozenset("h"))
        found["steps"].append({"changes": plain(changes), "weights": plain(weights), "state": plain(state)})
    return found


def safetensors(random):
    tensors = {
        "floats": normal(random, 2, 3),
        "none": np.zeros((0, 4), np.float32),
        "one": np.array(1.5, np.float32),
        "longs": np.array([[2**62, -1]], np.int64),
        "ints": np.array([-7, 2**31 - 1], np.int32),
        "bytes": np.array([1, -2, 3], np.int8),
    }
    data = save(tensors, {"report": '{"loss": 0.5, "who": "é"}'})
    return {"data": base64.b64encode(data).decode(), "tensors": plain(tensors)}


def replayed(settings, kind, random):
    training = Training(
        mode="iteration",
        batch=2,
        length=4,
        learning_rate=0.1,
        head_learning_rate=random.choice([None, 0.4]),
        **settings,
    )
    optimizers = ServerOptimizers(ServerOptimizer(kind, 0.01), ServerOptimizer("fedavg", 0.01))
    weights = {p.name: normal(random, *p.shape) for p in [*(p for u in UNITS for p in u.parameters), *HEAD]}
    found = {"training": asdict(training), "optimizers": asdict(optimizers), "weights": plain(weights)}
    head_size = sum(parameter.size for parameter in HEAD)
    shape = training.directions, training.batch
    exact = training.head == "exact"

    def derivatives():
        return normal(random, *shape)[:, : training.rows]

    log, state = b"", {}
    for iteration, held in enumerate([([0, 2], [1]), ([1], [1, 2]), ([0, 1, 2],)]):
        participants = tuple(
            Participant(
                int(random.integers(2**63)),
                tuple(units),
                ScalarReport(0.0, 1 + number % 2, derivatives(), None if exact else derivatives()),
            )
            for number, units in enumerate(held)
        )
        head = normal(random, head_size) if exact else None
        record = StepRecord(iteration + 1, 1, iteration, participants, head)
        log += encode_record(record, MANIFEST, training)
    for record in decode_records(log):
        replay(record, weights, state, MANIFEST, training, optimizers)
    return found | {"records": base64.b64encode(log).decode(), "after": plain(weights), "state": plain(state)}


def planned(fields, settings, memory, alone):
    given = {"batch": 2, "bundle": "b", "runtime": "onnx", "version": 0, "iteration": 0, "seconds": 1.0} | fields
    training = Training(**({"batch": 2, "length": 4} | settings))
    task = Task("t", "j", "job", 1, 1, **given, training=training, optimizers=ServerOptimizers())
    found = {"task": asdict(task), "memory": memory, "alone": alone}
    try:
        plan = plan_for(MANIFEST, task, memory, low_memory=alone)
        names = [program.method for program in programs_of(MANIFEST, task)]
        return found | {"programs": names, "low_memory": plan.low_memory, "cache_bytes": plan.cache_bytes}
    except SpryError as error:
        return found | {"error": str(error).partition(";")[0].partition(":")[0]}


def shortened(random, times):
    start = {"a": normal(random, 2, 3), "b": normal(random, 4)}
    update = {name: value + normal(random, *value.shape) * np.float32(0.1) for name, value in start.items()}
    most = times * length_of(changes_of(start, update))
    found = {"start": plain(start), "update": plain(update), "most": most}
    return found | {"clipped": plain(clipped(start, update, most))}


class Given(Runtime):
    """Computes what it is told, and keeps what it was given."""

    def _load(self, program):
        def run(arrays):
            self.inputs = {spec.name: value for spec, value in zip(program.inputs, arrays, strict=True)}
            return list(self.results.values())

        return run


def tried(random):
    sizes = {"hidden": (2, 4, 3), "w:second.a": (1, 5)}
    inputs = (
        *(TensorSpec(name, "float32", shape) for name, shape in sizes.items()),
        TensorSpec("labels", "int64", (2, 4)),
    )
    noted = {"loss": normal(random, 2), "logits": normal(random, 2, 4, 2), "g:second.a": normal(random, 1, 5)}
    noted["moved"] = normal(random, 60) * np.float32(1e-5)
    outputs = tuple(TensorSpec(name, "float32", value.shape) for name, value in noted.items())
    program = ProgramSpec("head", "vjp", 2, 4, 0, "programs", "tried", inputs, outputs, 1, 1, 1)
    runtime = Given(Path())
    runtime.results = noted
    (trial,) = trials.noted(runtime, RuntimeSpec("none", {}, (program,), 0))
    found = {
        "program": msgspec.to_builtins(program),
        "trial": msgspec.to_builtins(trial),
        "inputs": plain(runtime.inputs),
    }
    follower = noted["logits"] + np.float32([3, 0])  # another token, as likely
    turned = noted["g:second.a"][:, ::-1]
    cases = [
        {},
        {"logits": follower},
        {"logits": noted["logits"] + 1},
        {"g:second.a": turned},
        {"moved": -noted["moved"]},
    ]
    cases += [{"loss": noted["loss"] * np.float32(1 + part)} for part in (5e-4, 5e-3)]
    return found | {"cases": [off(runtime, program, trial, noted | changed) for changed in cases]}


def off(runtime, program, trial, results):
    runtime.results = results
    errors = trials._errors(trials._run(runtime, program), trial.outcomes)
    return {"results": plain(results), "errors": errors}


def normal(random, *shape):
    return random.standard_normal(shape, np.float32)


def plain(tensors):
    """Tensors as JSON, floats with the digits that tell them apart."""
    return {
        name: {
            "shape": list(value.shape),
            "values": [float(f"{v:.9g}") if value.dtype == np.float32 else int(v) for v in value.reshape(-1)],
        }
        for name, value in tensors.items()
    }


def main():
    PATH.write_bytes(msgspec.json.encode(vectors()) + b"\n")


if __name__ == "__main__":
    main()

"""`spry bench estimate`: what it measures on a tiny model, and what its command prints."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edge_client.commands import cli
from edge_client.wire.protocol import Training
from server.errors import SimulationError
from server.policy.passes import ONE_TOKEN
from server.simulation.compute.work import learner_of, population_of
from server.simulation.noise.choice import Candidate, cosine_with, forward_passes, noise
from server.simulation.noise.measurement import measure
from server.simulation.plan import plan_for
from server.simulation.run.folder import RunFolder, weights_in
from server.simulation.run.run import simulate
from tests.server.simulation.runs import SMALL_LORA, write_data

BATCH, LENGTH = 4, 8
FORWARD = Training(batch=BATCH, length=LENGTH)
SHARED = replace(FORWARD, per_example=False)
EXACT = replace(FORWARD, estimator="exact")
WEIGHTS = 64
"""Of a unit: LoRA of rank 1 on 32 x 32."""


def plan_of(model_folder, data, **changes):
    given = {
        "method": "spry", "preset": "default", "model": str(model_folder), "data": str(data), "seed": 5, "clients": 6,
        "alpha": 1.0, "adapter": SMALL_LORA, "settings": {"training": {"length": LENGTH}},
    }  # fmt: skip
    return plan_for(**{**given, **changes})


@pytest.fixture(scope="module")
def plan(model_folder, tmp_path_factory):
    return plan_of(model_folder, write_data(tmp_path_factory.mktemp("data"), rows=60, test=4))


@pytest.fixture(scope="module")
def opened(plan):
    """A model is opened once: it keeps nothing of what it computed."""
    population = population_of(plan)
    return learner_of(plan, population.labels), population


@pytest.fixture
def rows(plan, opened):
    """Rows of some choices, at weights that give each parameter a gradient."""
    learner, population = opened
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(0, 0.3, value.shape).astype(np.float32) for name, value in learner.initial.items()}

    def measured(*choices, repeats=2, examples=1000, **changed):
        found = measure(
            plan, learner, changed.get("population", population), choices, weights=weights, examples=examples,
            repeats=repeats,
        )  # fmt: skip
        return list(found)

    return measured


@pytest.mark.parametrize("training", [SHARED, FORWARD])
def test_a_whole_block_of_orthogonal_directions_is_the_gradient(rows, training):
    choice = Candidate(replace(training, kind="orthogonal", directions=WEIGHTS))
    for row in rows(choice):
        assert row.weights == WEIGHTS
        assert row.cosine_batch == pytest.approx(1, abs=1e-5)
        assert row.error == pytest.approx(0, abs=1e-5)
        assert row.formula == pytest.approx(1)
        assert row.formula_differ == 1


def test_half_a_block_is_not(rows):
    found = rows(Candidate(replace(SHARED, kind="orthogonal", directions=WEIGHTS // 2)), repeats=10)
    assert np.mean([row.error for row in found]) == pytest.approx(1, rel=0.3)
    assert all(0.3 < row.cosine_batch < 0.95 for row in found)


def test_the_exact_gradient_has_no_noise_but_that_of_its_examples(rows):
    for row in rows(Candidate(EXACT, holders=(1, 3))):
        assert row.cosine_batch == pytest.approx(1)
        assert row.error == pytest.approx(0, abs=1e-9)
        assert row.cosine_data < 0.999
        assert row.cosine_data == pytest.approx(row.cosine_steady)
        assert row.efficiency == pytest.approx(max(row.cosine_steady, 0) ** 2 / row.passes / row.holders)
        assert row.formula is row.agreement is None


def test_a_batch_of_all_examples_has_the_gradient_over_the_data(rows, plan):
    alone = population_of(plan.model_copy(update={"clients": 1}))
    training = replace(EXACT, batch=len(alone.client(0).train))
    for row in rows(Candidate(training), repeats=1, population=alone):
        assert row.cosine_data == pytest.approx(1, abs=1e-6)
    for row in rows(Candidate(training), repeats=1, examples=3, population=alone):
        assert row.cosine_data < 0.999


@pytest.mark.parametrize(
    ("training", "kind", "holders"),
    [(FORWARD, "normal", 1), (FORWARD, "rademacher", 4), (FORWARD, "orthogonal", 4), (SHARED, "orthogonal", 1)],
)
def test_cosines_are_those_of_the_formula(rows, training, kind, holders):
    """Those of half as many directions would be seen to differ."""
    found = rows(
        *(Candidate(replace(training, kind=kind, directions=k), holders=(holders,)) for k in (8, 4)), repeats=40
    )
    half, whole = found[len(found) // 2 :], found[: len(found) // 2]
    measured, expected = (np.mean([getattr(r, name) for r in whole]) for name in ("cosine_batch", "formula"))
    assert measured == pytest.approx(expected, abs=0.03)
    assert measured - np.mean([row.formula for row in half]) > 0.06
    own = 8 * (BATCH if training.per_example else 1)
    for row in whole:
        assert row.formula_differ == cosine_with(noise(kind, WEIGHTS, 8))
        assert row.formula_agree == cosine_with(noise(kind, WEIGHTS, own) / holders)
        assert row.agreement <= holders * own / 8 * (1 + 1e-6)


@pytest.mark.parametrize("kind", ["normal", "rademacher"])
def test_directions_at_bottlenecks_are_as_noisy_as_their_formula_and_less_than_of_weights(model_folder, plan, kind):
    """As many numbers along weights would leave the square of the gradient so many times over."""
    narrow = plan_of(model_folder, plan.data, adapter={"method": "bottleneck", "rank": 2})
    population = population_of(narrow)
    learner = learner_of(narrow, population.labels)
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(0, 0.3, value.shape).astype(np.float32) for name, value in learner.initial.items()}
    choices = Candidate(replace(FORWARD, kind=kind)), Candidate(SHARED)
    found = list(measure(narrow, learner, population, choices, weights=weights, examples=60, repeats=60))
    assert {row.per_example for row in found} == {True}, "examples that share a direction cannot share these"
    assert {row.formula_differ for row in found} == {None}
    measured, expected = (np.mean([getattr(row, name) for row in found]) for name in ("cosine_batch", "formula"))
    assert measured == pytest.approx(expected, abs=0.05)
    assert expected > 2 * cosine_with(noise(kind, found[0].weights, 1))
    with pytest.raises(SimulationError, match="each example's own"):
        list(measure(narrow, learner, population, choices[1:], weights=weights, examples=60, repeats=1))


def test_more_holders_are_nearer_to_the_data(rows):
    found = rows(Candidate(EXACT, holders=(1, 4)), repeats=20)
    one, four = (np.mean([row.cosine_data for row in found if row.holders == holders]) for holders in (1, 4))
    assert four > one + 0.05


def test_the_steady_cosine_is_what_the_measured_one_tends_to(rows):
    found = rows(Candidate(replace(FORWARD, directions=4)), repeats=100)
    measured, steady = (np.mean([getattr(row, name) for row in found]) for name in ("cosine_data", "cosine_steady"))
    assert measured == pytest.approx(steady, abs=0.03)


def test_central_differences_are_derivatives_along_one_direction_for_all(rows):
    """Units and head together, as forward mode can have it too."""
    joint = replace(SHARED, head="joint", directions=3)
    pairs = zip(
        rows(Candidate(replace(joint, estimator="central"), per_client=0)),
        rows(Candidate(joint, per_client=0)),
        strict=True,
    )
    for central, forward in pairs:
        assert central.cosine_batch == pytest.approx(forward.cosine_batch, abs=0.01)
        assert central.passes == 6


def test_mixed_has_no_noise_in_the_last_blocks(rows):
    """Of a client with all units, and of clients with one: before the last block they are forward mode's."""
    training = replace(FORWARD, estimator="mixed", directions=4)
    for per_client in (0, 1):
        found = rows(Candidate(training, per_client=per_client))
        before, behind = ([row for row in found if row.block == block] for block in (0, 1))
        forward = rows(Candidate(replace(FORWARD, directions=4), per_client=1))
        assert all(row.error == pytest.approx(0, abs=1e-9) for row in behind)
        assert all(row.formula is row.agreement is None for row in behind)
        assert all(row.error > 0.5 and row.agreement for row in before)
        assert all(row.passes == (1 + 4 * 0.5 + 2 * 0.5 if row in before or not per_client else 2) for row in found)
        if per_client:
            assert [(row.error, row.formula) for row in before] == [
                (r.error, r.formula) for r in forward if not r.block
            ]
    whole = replace(training, kind="orthogonal", directions=0)
    assert all(row.directions == WEIGHTS and row.error < 1e-9 for row in rows(Candidate(whole, per_client=1)))


def test_passes_by_the_blocks_after_the_cut(opened):
    manifest = opened[0].manifest
    first, last = (next(n for n, unit in enumerate(manifest.units) if name in unit.segments)
                   for name in ("block.0", "block.1"))  # fmt: skip
    step = replace(FORWARD, directions=5)
    narrow = ONE_TOKEN / 2  # the last block's result is read at one token
    found = [forward_passes(manifest, units, step) for units in ([first], [last], [last, first])]
    assert found == pytest.approx([1 + 5 * (0.5 + narrow), 1 + 5 * narrow, 1 + 5 * (0.5 + narrow)])
    assert [forward_passes(manifest, [unit], EXACT) for unit in (first, last)] == [3, 2]
    assert forward_passes(manifest, [last], replace(SHARED, estimator="central", directions=5)) == 10


def test_an_adapter_without_units(model_folder, plan, opened):
    bare = plan_of(model_folder, plan.data, adapter={"method": "classifier"})
    learner = learner_of(bare, opened[1].labels)
    with pytest.raises(SimulationError, match="no units"):
        list(measure(bare, learner, opened[1], [Candidate(EXACT)], weights=learner.initial, examples=4, repeats=1))


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(plan, tmp_path_factory):
    """Not to be written to."""
    out = tmp_path_factory.mktemp("run") / "run"
    settings = plan.settings.model_copy(update={"rounds": 1, "per_round": 2})
    simulate(plan.model_copy(update={"settings": settings}), out, lambda _: None)
    return out


def test_weights_of_a_run_and_of_its_adapter(run, opened):
    initial, lines = opened[0].initial, (run / "rounds.jsonl").read_bytes()
    found = weights_in(run, initial)
    state = RunFolder(run).state()
    assert found.keys() == initial.keys()
    assert any(np.any(value != initial[name]) for name, value in found.items())
    for name, value in found.items():
        np.testing.assert_array_equal(value, state.model.weights[name])
        np.testing.assert_array_equal(value, weights_in(run / "adapter", initial)[name])
    assert (run / "rounds.jsonl").read_bytes() == lines


def test_weights_that_cannot_be_used(run, opened, tmp_path):
    initial = opened[0].initial
    with pytest.raises(SimulationError, match="neither a checkpoint"):
        weights_in(tmp_path, initial)
    name = min(initial)
    with pytest.raises(SimulationError, match=f"first {name}"):
        weights_in(run, initial | {name: np.zeros(7, np.float32)})
    adapter = shutil.copytree(run / "adapter", tmp_path / "adapter")
    path = adapter / "adapter_model.safetensors"
    save_file({key: value for key, value in load_file(path).items() if key != name}, path)
    with pytest.raises(SimulationError, match=f"first {name}"):
        weights_in(adapter, initial)
    path.write_bytes(b"nothing")
    with pytest.raises(SimulationError, match="cannot be read"):
        weights_in(adapter, initial)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def estimate(plan, capsys):
    def command(*options, code=0):
        base = ["bench", "estimate", "--model", plan.model, "--data", plan.data, "--clients", 6, "--length", LENGTH]
        base += ["--repeats", 2, "--examples", 20, "--batch", BATCH, "--seed", 5]
        assert cli.run([str(word) for word in (*base, *options)]) == code
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return command


SWEEP = ("--adapter", "lora:rank=1,last_blocks=0", "--adapter", "lora:rank=2,last_blocks=0", "--directions", "4",
         "--holders", "1,2", "--kind", "normal,orthogonal", "--estimators", "forward,exact,mixed,central",
         "--exact-blocks", "0,1")  # fmt: skip


def test_figures_are_the_same_each_time_for_the_same_split(estimate):
    first = estimate("--json")
    assert estimate("--json") == first
    assert json.loads(estimate("--json", "--alpha", "0.1"))["adapters"] != json.loads(first)["adapters"]


def test_figures_as_json(estimate):
    found = json.loads(estimate(*SWEEP, "--json"))
    assert [each["adapter"]["method"] for each in found["adapters"]] == ["lora", "lora"]
    for each in found["adapters"]:
        # forward: 2 kinds x 2 owners; mixed: the same x 2 depths; central: 2 kinds; exact: 1; with 1 and 2 holders
        assert len(each["summary"]) == 2 * (4 + 8 + 2 + 1)
        assert len(each["rows"]) == len(each["summary"]) * 4
        for line in each["summary"]:
            own = [row for row in each["rows"] if all(row[name] == line[name] for name in row.keys() & line.keys())]
            assert len(own) == line["units"] == 4
            for figure in ("cosine_batch", "passes"):
                assert line["median"][figure] == pytest.approx(np.median([row[figure] for row in own]))
                first_block = [row[figure] for row in own if row["block"] == 0]
                assert line["first_block"][figure] == pytest.approx(np.mean(first_block))
    assert found["adapters"][1]["rows"][0]["weights"] == 2 * (32 + 32)


def test_tables_fit_a_terminal(estimate):
    overview = estimate(*SWEEP, "--batch", "2,4", "--units-per-client", "1,0")
    assert max(map(len, overview.splitlines())) <= 100
    assert "…" not in overview
    assert "lora rank=2 alpha=2: 4 units of 128 weights" in overview
    assert "orthogonal shared B=2 h=1 u=all" in overview
    assert "orthogonal shared +0 B=2 h=1 u=all" in overview
    units = estimate("--directions", "2", "--per-example", "--by-unit")
    assert max(map(len, units.splitlines())) <= 100
    assert "…" not in units
    assert units.count("layer.1.attention.self.query") == 2  # of one K, and exact


def test_any_setting_can_be_set(estimate, tmp_path):
    """Over options, as with `spry job create`: combinations that it makes alike are measured once."""
    (tmp_path / "settings.json").write_text('{"training": {"kind": "orthogonal", "directions": 3}}')
    asked = "--directions", "1,2", "--estimators", "forward", "--shared", "--json"
    found = json.loads(estimate(*asked, "--set", "training.directions=4", "--settings", tmp_path / "settings.json"))
    assert found == json.loads(estimate("--directions", "4", *asked[2:]))


def test_a_labelled_calibration_set(estimate, plan):
    narrow = "--peft", "bottleneck", "--rank", "2", "--estimators", "exact", "--json"
    (found,) = json.loads(estimate(*narrow, "--calibration-examples", f"{plan.data}/train.jsonl"))["adapters"]
    assert found["adapter"]["examples"].endswith("train.jsonl")
    assert found["rows"] != json.loads(estimate(*narrow))["adapters"][0]["rows"]


def test_weights_of_a_run_change_the_figures(estimate, run):
    same = "--rank", "1", "--last-blocks", "0", "--json"
    start, trained = estimate(*same), estimate(*same, "--weights", str(run))
    assert json.loads(start)["adapters"] != json.loads(trained)["adapters"]


WRONG = [
    (("--holders", "0"), "--holders takes whole numbers from 1 on, between commas, got '0'"),
    (("--estimators", "mixed", "--exact-blocks", "-1"), "--exact-blocks takes whole numbers from 0 on"),
    (("--holders", "many"), "--holders takes whole numbers"),
    (("--batch", ""), "--batch takes whole numbers"),
    (("--adapter", "bottleneck:size=3"), "--adapter takes a method with some of rank, alpha"),
    (("--adapter", "lora:rank=no"), "rank: Input should be a valid integer"),
    (("--adapter", "poetry"), "unknown adapter 'poetry'"),
    (("--kind", "gaussian"), "kind"),
    (("--set", "training.speed=1"), "training.speed: Unexpected keyword argument"),
    (("--set", "rounds"), "--set takes KEY=VALUE"),
    (("--estimators", "magic"), "estimator"),
    (("--holders", "7"), "a round can have 1 to 6 of the 6 clients, got 7"),
    (("--weights", "nowhere"), "nowhere holds neither a checkpoint"),
    (("--peft", "classifier"), "no units"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_what_cannot_be_measured_is_one_line(estimate, options, message):
    told = estimate(*options, code=2)
    assert message in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1


def test_without_the_simulators_libraries():
    code = "import sys; sys.modules['pydantic'] = None; import edge_client.commands.cli as cli"
    code += "; sys.exit(cli.run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "bench", "estimate", "--model", "m", "--data", "d"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: spry bench estimate needs the extra 'simulate' (pydantic is not installed)")
    shown = subprocess.run([*command[:4], "--help"], capture_output=True, text=True, check=False)
    assert "estimate" in shown.stdout
    assert shown.returncode == 0

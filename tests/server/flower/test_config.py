"""The settings of a run over Flower."""

import pytest

from server.errors import FlowerError, Refusal
from server.flower.config import hosted, nested, settings_for, text_of
from server.jobs.settings import JobSettings
from tests.edge_client.toy import B, T, Toy

SHAPE = {"job.training.batch": B, "job.training.length": T, "job.training.directions": 2}
MANIFEST = Toy().manifest()


def test_settings_stand_under_job_over_those_of_the_preset_that_fits():
    settings = settings_for({"bundle": "b", "job.rounds": 7, "job.training.learning_rate": 0.25, **SHAPE}, MANIFEST)
    assert (settings.rounds, settings.training.learning_rate, settings.training.batch) == (7, 0.25, B)
    assert settings.training.estimator == "auto"
    assert settings.training.head_learning_rate is not None  # what is left open is settled
    named = settings_for({"preset": "default", **SHAPE}, MANIFEST)
    assert named.training.estimator == "forward"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"preset": "fast"}, "preset must be one of auto, forward, scalars, default, paper, bottleneck, got 'fast'"),
        ({"job.rounds": 0}, "refused: job.rounds: Input should be greater than or equal to 1"),
        ({"job.round": 3}, "refused: job.round: Extra inputs are not permitted"),
        ({"job.training": 3}, "job.training.batch is given, and a value for training itself"),
        ({"job.training.mode": "iteration", "preset": "default"}, "has no training.mode=iteration: use `spry serve`"),
        ({"job.secure_aggregation": True, "job.schedule": "synchronous"}, "has no secure_aggregation"),
        ({"job.privacy_noise": 1.0}, "has no a privacy budget"),
        ({"job.schedule": "buffered"}, "has no schedule=buffered"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(given, told):
    with pytest.raises(FlowerError) as caught:
        settings_for({**given, **SHAPE}, MANIFEST)
    assert told in str(caught.value)


def test_what_a_bundle_has_no_programs_for_is_refused():
    training = {"batch": B, "length": T + 1, "directions": 2}
    with pytest.raises(Refusal, match="export again"):
        hosted(JobSettings.model_validate({"training": training}), MANIFEST)


def test_flat_names_are_nested():
    assert nested({"a.b.c": 1, "a.b.d": 2, "e": 3}) == {"a": {"b": {"c": 1, "d": 2}}, "e": 3}


def test_a_node_names_what_is_its_own():
    run = {"data": "rows/{partition-id}.jsonl", "bundle": "b", "text": ""}
    assert text_of(run, "data", {"partition-id": 3}) == "rows/3.jsonl"
    assert text_of(run, "data", {"data": "own.jsonl"}) == "own.jsonl"
    assert text_of(run, "text", {}, "") == ""
    with pytest.raises(FlowerError, match="only names of the node's configuration may be in braces"):
        text_of(run, "data", {})
    with pytest.raises(FlowerError, match="threads is neither in the node's configuration nor in the run's"):
        text_of(run, "threads", {})

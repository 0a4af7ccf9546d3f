"""Test messages between a SuperLink and its nodes: they arrive as sent, and nothing else is accepted."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is in an environment of its own: `make flower`")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from edge_client.bundle.manifest import FeatureSpec
from edge_client.training.features import MEAN, PRODUCTS
from edge_client.wire.protocol import CheckIn, Report
from server.errors import FlowerError
from server.flower.fleet import NodeOffer
from server.flower.messages import (
    SAID,
    WEIGHTS,
    NodeUpdate,
    offer_content,
    offer_in,
    record_of,
    refusal_content,
    task_content,
    task_in,
    update_content,
    update_in,
)
from tests.edge_client.toy import HEAD, C, H, Toy

MANIFEST = Toy().manifest()
REPORT = Report(examples=12, steps=3, loss=0.5, held_back=4, right_global=2, sums_global={"loss": 1.25})


@pytest.fixture
def own(task):
    return replace(task, units=[1], bundle="b" * 64)


@pytest.fixture
def tensors():
    weights = Toy().weights
    return {parameter.name: weights[parameter.name] for parameter in MANIFEST.trained_with([1])}


def sent(content: RecordDict) -> RecordDict:
    """As it arrives: each record by its bytes."""
    arrays = {name: Array(one.dtype, one.shape, one.stype, bytes(one.data)) for name, one in content[WEIGHTS].items()}
    return RecordDict({SAID: ConfigRecord(dict(content[SAID])), WEIGHTS: ArrayRecord(arrays)})


@given(
    st.lists(st.text(min_size=1, max_size=100), max_size=20),
    st.integers(0, 2**40),
    st.none() | st.integers(0, 2**50),
    st.integers(-1, 2**31),
)
def test_what_a_node_has(runtimes, examples, memory, position):
    offer = NodeOffer(CheckIn(runtimes, examples, memory, low_memory=True), "b" * 64, position)
    assert offer_in(offer_content(offer)) == offer


def test_a_task_and_the_rounds_weights(own):
    weights = Toy().weights
    task, found = task_in(sent(task_content(own, record_of(weights))))
    assert task == own
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        assert found[name].tobytes() == value.tobytes()


def test_an_update_and_its_report(own, tensors):
    found = update_in(sent(update_content(NodeUpdate(tensors, REPORT))), MANIFEST, own)
    assert found.report == REPORT
    for name, value in tensors.items():
        assert found.tensors[name].tobytes() == value.tobytes()


def test_moments_are_taken_where_they_were_asked_for(own, tensors):
    manifest = msgspec.structs.replace(MANIFEST, features=FeatureSpec(HEAD, "", 1.0))
    moments = {MEAN: np.zeros(H, np.float32), PRODUCTS: np.zeros(H * (H + 1) // 2, np.float32)}
    content = update_content(NodeUpdate({**tensors, **moments}, replace(REPORT, measured=12)))
    assert update_in(content, manifest, replace(own, measure=True)).tensors.keys() == {*tensors, *moments}
    with pytest.raises(FlowerError, match="the update holds"):
        update_in(content, manifest, own)


BAD = {
    "holds other": (lambda t: t | {"block.0.A": np.zeros((1, H), np.float32)}, "the update holds block.0.A"),
    "lacks one": (lambda t: {name: value for name, value in t.items() if name != HEAD}, f"the update lacks {HEAD}"),
    "double": (lambda t: t | {HEAD: np.zeros((C, H))}, f"{HEAD} is float64 [2, 5], expected float32"),
    "shape": (lambda t: t | {HEAD: np.zeros((H, C), np.float32)}, f"{HEAD} is float32 [5, 2], expected float32 [2, 5]"),
    "infinite": (lambda t: t | {HEAD: np.full((C, H), np.inf, np.float32)}, f"{HEAD} holds numbers that are not"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_tensors_than_the_tasks_are_refused(case, own, tensors):
    spoilt, told = BAD[case]
    with pytest.raises(FlowerError) as caught:
        update_in(update_content(NodeUpdate(spoilt(tensors), REPORT)), MANIFEST, own)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ({"examples": 0}, "the message is not valid: a report: examples Input should be greater than or equal to 1"),
        ({"loss": 1e31}, "the message is not valid: a report: loss"),
        ({"steps": "3"}, "the message is not valid: a report: steps"),
    ],
)
def test_a_report_beyond_its_bounds_is_refused(report, told, own, tensors):
    with pytest.raises(FlowerError) as caught:
        update_in(update_content(NodeUpdate(tensors, replace(REPORT, **report))), MANIFEST, own)
    assert told in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_what_is_no_array_is_refused(data, own):
    record = ArrayRecord({HEAD: Array("float32", (C, H), "numpy.ndarray", data)})
    content = RecordDict({**update_content(NodeUpdate({}, REPORT)), WEIGHTS: record})
    with pytest.raises(FlowerError, match="weights are no arrays"):
        update_in(content, MANIFEST, own)


def test_objects_are_never_loaded(own):
    """Pickled code would run as it is read."""
    from io import BytesIO

    file = BytesIO()
    np.save(file, np.array([object()], object), allow_pickle=True)
    record = ArrayRecord({HEAD: Array("object", (1,), "numpy.ndarray", file.getvalue())})
    with pytest.raises(FlowerError, match="weights are no arrays"):
        update_in(RecordDict({**update_content(NodeUpdate({}, REPORT)), WEIGHTS: record}), MANIFEST, own)


def test_a_message_of_something_else_is_refused(own):
    for content in (RecordDict(), RecordDict({SAID: ConfigRecord({"json": 3})})):
        with pytest.raises(FlowerError, match="the message is not valid: a report"):
            update_in(content, MANIFEST, own)
    with pytest.raises(FlowerError, match="the message has no weights"):
        task_in(RecordDict({SAID: task_content(own, ArrayRecord())[SAID]}))


def test_why_a_node_cannot_is_told(own):
    with pytest.raises(FlowerError, match="rows of 7 do not exist"):
        update_in(refusal_content("rows of 7 do not exist"), MANIFEST, own)

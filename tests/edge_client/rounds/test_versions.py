"""Which weights a task starts from: those that are kept, what changed since, or all anew."""

from dataclasses import replace

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from edge_client.bundle.folder import Bundle
from edge_client.rounds.versions import current
from edge_client.store.job import KeptWeights
from edge_client.store.jobs import DeviceStore
from edge_client.wire.server import Server

THEN, LATER, LOST = 1.7e9 + 1 / 3, 1.7e9 + 500.125, 1.7e9 + 77
"""When versions were published."""


@pytest.mark.parametrize(
    ("kept", "start", "asked"),
    [
        (None, (0, 0.0), []),
        (None, (5, LATER), [{"since": "0"}]),
        ((5, LATER), (5, LATER), []),
        ((3, THEN), (5, LATER), [{"since": "3", "published": repr(THEN)}]),
        # of the line that a restored server has lost
        ((5, LOST), (5, LATER), [{"since": "-1"}]),
        ((3, LOST), (5, LATER), [{"since": "3", "published": repr(LOST)}, {"since": "-1"}]),
        ((7, LOST), (5, LATER), [{"since": "0"}]),
        # kept by an earlier version of the client, or told by one of the server
        ((5, 0.0), (5, LATER), [{"since": "-1"}]),
        ((3, 0.0), (5, LATER), [{"since": "-1"}]),
        ((5, LOST), (5, 0.0), []),
        ((3, 0.0), (5, 0.0), [{"since": "3"}]),
    ],
)
def test_weights_of_a_lost_line_are_fetched_anew(trainable, task, kept, start, asked, tmp_path):
    version, published = start
    seen = []

    def answer(asking: httpx.Request) -> httpx.Response:
        seen.append(dict(asking.url.params))
        if seen[-1].get("published") == repr(LOST):
            return httpx.Response(409, json={"title": "", "status": 409, "detail": "", "code": "stale"},
                                  headers={"Content-Type": "application/problem+json"})  # fmt: skip
        return httpx.Response(200, content=save(now), headers={"X-Spry-Version": str(version)})

    with Bundle.open(trainable) as bundle:
        initial = bundle.initial_adapter()
        now = {name: value + 1 for name, value in initial.items()}
        job = DeviceStore(tmp_path, "http://x").job("j")
        if kept is not None:
            job.save_weights("b", KeptWeights(kept[0], initial, published=kept[1]))
        server = Server("http://x", transport=httpx.MockTransport(answer), patience=0)
        begun = replace(task, bundle="b", version=version, published=published)
        found = current(server, job, bundle, begun)
        assert current(server, job, bundle, begun).version == version  # nothing more is asked
    assert seen == asked
    assert found.version == version
    for name, value in found.weights.items():
        np.testing.assert_array_equal(value, (now if asked else initial)[name])

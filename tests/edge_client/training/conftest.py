"""A bundle to train, opened once for a file of tests."""

import pytest

from edge_client.bundle.folder import Bundle
from edge_client.runtimes.runtime import open_runtime
from tests.edge_client.training.bench import Bench


@pytest.fixture(scope="module")
def bench(trainable):
    bundle = Bundle.open(trainable)
    with open_runtime("onnx", bundle.folder, threads=1) as runtime:
        yield Bench(bundle, runtime)

"""The rounds of `fedavg.Work` by pfl-research: `torchrun --nproc-per-node N with_pfl.py FOLDER`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fedavg import Work, trained
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Model(nn.Module):
    """The model as pfl wants it: a module that gives losses and metrics."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def loss(self, **batch: Tensor) -> Tensor:
        return self.model(**batch).loss

    def metrics(self, **_: Any) -> dict[str, Any]:
        return {}


class Rows(Dataset):
    """A client's batches of a round."""

    def __init__(self, work: Work, place: int) -> None:
        self._place = divmod(place, work.clients)
        self._work = work
        super().__init__(raw_data=[np.arange(work.steps * work.batch)], user_id=str(place))

    def iter(self, batch_size: int | None) -> Iterator[dict[str, Tensor]]:  # noqa: ARG002 -- they are cut already
        return self._work.batches(*self._place)


class Watch(TrainingProcessCallback):
    """Notes when rounds end."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self._work.round_ended()
        return False, Metrics()


def main() -> None:
    work = Work(Path(sys.argv[1]))
    inner = Model(work.model())
    learned = [value for value in inner.parameters() if value.requires_grad]
    places = itertools.count()

    def optimizer(_: Any, lr: float) -> torch.optim.SGD:
        return torch.optim.SGD(learned, lr=lr)

    def rows(place: int) -> Rows:
        return Rows(work, place)

    model = PyTorchModel(
        inner,
        local_optimizer_create=optimizer,
        central_optimizer=torch.optim.SGD(learned, lr=1.0),
    )
    data = FederatedDataset(rows, lambda: next(places))
    FederatedAveraging().run(
        NNAlgorithmParams(work.rounds, 1_000_000, work.clients, val_cohort_size=None),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.rate),
        callbacks=[Watch(work)],
    )
    if distributed.global_rank == 0:
        work.done(trained(inner.model))


if __name__ == "__main__":
    main()

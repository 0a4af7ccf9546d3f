"""MLflow: a run for each job, by MLflow's own client, in a tracking server or a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from edge_client.errors import RuntimeMissing
from server.sinks.sink import Curves, Point, Sink, SinkError, flat

if TYPE_CHECKING:
    from mlflow.entities import Run

T = TypeVar("T")

_EXPERIMENT, _DEFAULT = "MLFLOW_EXPERIMENT_NAME", "spry"
_TAG = "spry.id"
_METRICS, _PARAMETERS, _LONGEST = 1000, 100, 500
"""The most metrics and parameters that a server takes at once, and the characters of a parameter."""
_PATIENCE = 5.0


class MLflow(Sink):
    """The run is known again by a tag; its experiment is `spry`, or what MLFLOW_EXPERIMENT_NAME says."""

    def __init__(self, where: str, curves: Curves) -> None:
        super().__init__(where, curves)
        _require_answer(where)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers of each run
        if "://" not in where:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # whoever names a folder wants one
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise RuntimeMissing("the sink mlflow", "mlflow", str(error)) from None
        with self._told():
            self._client = MlflowClient(tracking_uri=where or None)
            self._run = self._found() or self._made()

    @contextmanager
    def _told(self) -> Generator[None, None, None]:
        """Tell in a line what MLflow refuses, or what its kind of store needs and is not installed."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, ImportError) as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise SinkError(
                f"MLflow takes no curves at {self.where} ({first}); give the address of a server that runs, or a folder"
            ) from None

    def known(self) -> set[tuple[int, str]]:
        with self._told():
            names = self._client.get_run(self._id).data.metrics
            histories = {name: self._client.get_metric_history(self._id, name) for name in names}
        return {(metric.step, name) for name, history in histories.items() for metric in history}

    def add(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(point.name, point.value, int(point.time * 1000), point.round) for point in points]
        with self._told():
            for some in _portions(metrics, _METRICS):
                self._client.log_batch(self._id, metrics=some)

    def end(self) -> None:
        with self._told(), redirect_stdout(sys.stderr):  # it says where a run is, within a command's JSON
            self._client.set_terminated(self._id)

    @property
    def _id(self) -> str:
        return self._run.info.run_id

    @cached_property
    def _experiment(self) -> str:
        name = os.environ.get(_EXPERIMENT) or _DEFAULT
        known = self._client.get_experiment_by_name(name)
        return self._client.create_experiment(name) if known is None else known.experiment_id

    def _found(self) -> Run | None:
        known = self._client.search_runs([self._experiment], f"tags.`{_TAG}` = '{self.curves.id}'", max_results=1)
        return known[0] if known else None

    def _made(self) -> Run:
        from mlflow.entities import Param

        run = self._client.create_run(self._experiment, run_name=self.curves.name, tags={_TAG: self.curves.id})
        settings = [Param(name, value[:_LONGEST]) for name, value in flat(self.curves.settings).items()]
        for some in _portions(settings, _PARAMETERS):
            self._client.log_batch(run.info.run_id, params=some)
        return run


def _require_answer(where: str) -> None:
    """MLflow's client asks a server that is silent for minutes."""
    if not where.startswith(("http://", "https://")):
        return
    import httpx

    try:
        httpx.get(where, timeout=_PATIENCE)
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        raise SinkError(
            f"no MLflow server answers at {where} ({why}); is it running, and is the address right?"
        ) from None


def _portions(all_: Sequence[T], size: int) -> Iterator[Any]:
    for start in range(0, len(all_), size):
        yield all_[start : start + size]

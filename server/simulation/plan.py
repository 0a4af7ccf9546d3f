"""Everything that decides a simulation's numbers: what `config.json` holds, and what its workers are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from edge_client import __version__
from edge_client.bundle.manifest import DEFAULT_TASK, TaskName
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.commands.options.retired import refuse
from edge_client.data.examples import BadRows
from edge_client.tasks.registry import has_head
from server.errors import SimulationError
from server.jobs.completion import check_names
from server.jobs.presets import PRESETS, Preset, merged, of_data, preset_for, private_start
from server.jobs.settings import JobSettings
from server.simulation.methods.methods import PAPER_ADAPTER, PAPER_DATA, Method, PaperData, method_named

Arithmetic = Literal["float32", "bfloat16"]
Differences = Literal["taken", "limit"]
Others = Literal["block", "forward", "absent"]


class Plan(BaseModel):
    """One simulation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str = __version__
    method: str = "spry"
    preset: Preset = "default"
    model: str
    random_weights: bool = False
    runtime: str | None = None
    """The runtime by whose programs clients compute, where `model` is a bundle; None: PyTorch, by the model itself."""
    task: TaskName = DEFAULT_TASK
    adapter: Annotated[AdapterOptions, Field(validate_default=True)] = AdapterOptions()
    data: str
    columns: dict[str, str] = Field(default_factory=dict)
    bad_rows: BadRows = "refuse"
    clients: Annotated[int, Ge(1)] = 100
    alpha: float | None = 1.0
    """The parameter of the Dirichlet split; None: each value of the column is a client."""
    by: str = ""
    """The column that is split over."""
    seed: Annotated[int, Ge(0)] = 0
    test_examples: Annotated[int, Ge(0)] = 0
    """The number of test examples, evenly spread; 0: all."""
    personal: bool = True
    """Measure clients' own models on their own test examples."""
    device: str = "cpu"
    arithmetic: Arithmetic = "float32"
    differences: Differences = "taken"
    """The kind of central differences: taken, or their limit."""
    variance_bound: float | None = None
    able: Annotated[float, Ge(0), Le(1)] = 1.0
    """The share of clients that can hold an exact step through all blocks, where the estimator is `auto`."""
    others: Others = "block"
    """The step of clients that are not able: back through one block, forward alone, or none, as they take no part."""
    speeds: Annotated[float, Ge(1), Le(1e6)] = 1.0
    """The factor by which the slowest client is slower than the fastest."""
    settings: JobSettings

    @field_validator("adapter")
    @classmethod
    def _of_the_task(cls, adapter: AdapterOptions, info: ValidationInfo) -> AdapterOptions:
        return adapter.of_task(info.data.get("task", DEFAULT_TASK))

    @property
    def kind(self) -> Method:
        return method_named(self.method)

    @property
    def is_timed(self) -> bool:
        """True if a simulated clock runs."""
        return self.speeds > 1 or self.settings.is_buffered

    @model_validator(mode="after")
    def _can_be_late(self) -> Plan:
        if self.settings.is_buffered and (self.kind.estimator is not None or self.kind.variance_bound):
            raise ValueError(
                f"method {self.method} needs rounds that wait for their clients: leave out schedule=buffered"
            )
        return self

    @model_validator(mode="after")
    def _can_differ(self) -> Plan:
        estimator = self.settings.training.estimator
        if self.able < 1 and estimator != "auto":
            raise ValueError(f"--able is for the estimator auto, and this is {estimator}: leave it out, or take auto")
        if self.present < self.settings.per_round <= self.clients:
            raise ValueError(f"--others absent leaves {self.present} clients, and --per-round is more: lower it")
        return self

    @property
    def present(self) -> int:
        """Count the clients that take part, the first ones."""
        return round(self.able * self.clients) if self.others == "absent" else self.clients


def plan_for(
    *,
    method: str,
    preset: Preset | None,
    data: str,
    settings: Mapping[str, Any],
    adapter: Mapping[str, Any],
    seed: int,
    variance_bound: float | None = None,
    few: bool = False,
    **others: Any,
) -> Plan:
    """Build the plan of a method under a preset, by default one that fits its adapter, with the options on top.

    `few` tells that there are few rows of few classes, for which the default has other settings.
    """
    kind = method_named(method)
    refuse(f"--preset {preset}")
    preset = preset or _preset_for(kind, adapter, settings, has_head(others.get("task", DEFAULT_TASK)))
    known = PAPER_DATA.get(Path(data).name)
    if preset == "paper":
        adapter, others = _of_the_paper(adapter, others, known)
    if preset == "forward" and not adapter.keys() & {"method", "alpha"}:  # LoRA alone has an alpha
        adapter = {**adapter, "method": "bottleneck"}  # what a bundle for such a fleet is exported with
    base: dict[str, Any] = {"over_selection": 1.0, "norm_bound": 1e9, "seed": seed}
    start = PRESETS.get(preset, {})  # the plan refuses one that there is not
    of_kind = of_data(preset, has_head=has_head(others.get("task", DEFAULT_TASK)), few=few)
    own = known.training(kind.family) if known else {}
    of_method = {"default": kind.default, "paper": merged(kind.paper, {"training": own})}.get(preset, {})
    if variance_bound is None:
        variance_bound = known.variance_bound if known and preset == "paper" else kind.variance_bound
    elif kind.variance_bound is None:
        raise SimulationError(f"--variance-bound is for fwdllm+ only, and the method is {method}: leave it out")
    try:
        plan = Plan(
            method=method,
            preset=preset,
            data=data,
            settings=JobSettings.model_validate(
                merged(start, of_kind, base, kind.under(start), of_method, private_start(settings), settings)
            ),
            adapter=merged(adapter, {"method": kind.adapter} if kind.adapter else {}),  # type: ignore[arg-type] -- made here
            seed=seed,
            variance_bound=variance_bound if kind.variance_bound else None,
            **others,
        )
    except ValidationError as error:
        problems = [_problem(problem["loc"], problem["msg"]) for problem in error.errors()]
        raise SimulationError(f"the simulation cannot run like this: {'; '.join(problems[:3])}") from None
    check_names(plan.settings)
    return plan


def _of_the_paper(
    adapter: Mapping[str, Any], others: Mapping[str, Any], known: PaperData | None
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """LoRA, and a fleet for a data set, as the appendix has them, where neither is named."""
    lora = PAPER_ADAPTER if adapter.get("method", "lora") == "lora" else {}
    fleet = {"clients": known.clients, "by": known.by} if known else {}
    return merged(lora, adapter), {**fleet, **others}


def _preset_for(kind: Method, adapter: Mapping[str, Any], settings: Mapping[str, Any], headed: bool) -> Preset:
    """Choose the preset that fits; the plan of a forward fleet is this project's own method, and no other's."""
    preset = preset_for(adapter.get("method", ""), _asked(kind, settings), has_head=headed)
    return "default" if preset == "forward" and not kind.by_device else preset


def _asked(kind: Method, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge what is asked of training, by the method too where it stands for one way to find gradients."""
    training = settings.get("training")
    asked = training if isinstance(training, Mapping) else {}
    known_for = {} if kind.by_device else {"estimator": kind.settings["training"]["estimator"]}
    return {**known_for, **asked}


def _problem(where: Sequence[int | str], what: str) -> str:
    return f"{'.'.join(map(str, where)) or 'settings'}: {what.removeprefix('Value error, ')}"

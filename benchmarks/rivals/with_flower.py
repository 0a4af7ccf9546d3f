"""The rounds of `fedavg.Work` on Flower's simulation engine: `with_flower.py FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from fedavg import Work, opened, trained
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Watched(FedAvg):
    """Notes when rounds end."""

    def __init__(self, work: Work) -> None:
        clients = work.clients
        super().__init__(
            fraction_evaluate=0.0, min_train_nodes=clients, min_evaluate_nodes=0, min_available_nodes=clients
        )
        self._work = work

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        result = super().aggregate_train(server_round, replies)
        self._work.round_ended()
        return result


def train(folder: Path, message: Message, context: Context) -> Message:
    """A client's steps."""
    work, model = opened(folder)
    state = message.content.array_records["arrays"].to_torch_state_dict()
    own = trained(model)
    for name, value in state.items():
        own[name].copy_(value)
    number = int(message.content.config_records["config"]["server-round"]) - 1  # type: ignore[arg-type] -- a number
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=work.rate)
    for batch in work.batches(number, int(context.node_config["partition-id"])):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(own), "metrics": MetricRecord({"num-examples": work.steps * work.batch})}
    return Message(RecordDict(content), reply_to=message)


def main() -> None:
    folder, client, server = Path(sys.argv[1]), ClientApp(), ServerApp()
    work, model = opened(folder)

    @client.train()
    def _(message: Message, context: Context) -> Message:
        return train(folder, message, context)

    @server.main()
    def _(grid: Grid, _context: Context) -> None:
        result = Watched(work).start(grid, ArrayRecord(trained(model)), num_rounds=work.rounds)
        work.done(dict(result.arrays.to_torch_state_dict()))

    resources: dict[str, Any] = {
        "init_args": {"num_cpus": work.workers, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client, num_supernodes=work.clients, backend_config=resources)


if __name__ == "__main__":
    main()

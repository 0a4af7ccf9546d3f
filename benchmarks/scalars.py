"""Measure what mode iteration sends: bytes up and down for each iteration, beside the size of the weights.

    python benchmarks/scalars.py --bundle bundle/ --data DATA/snips --clients 4

Real clients of a real server play some rounds. The records are those that the server published; at the end the weights
that each client holds by repeating them are compared with the server's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from fleet import TOKEN, Client, Server, machine, read_rows, shape_of, shares, write_rows
from pydantic import SecretStr

from edge_client.store.jobs import DeviceStore
from edge_client.wire.scalars import decode_records, encode_report
from server.settings import Settings
from server.storage.jobs import find_job
from server.storage.store import Store

UPLINK, DOWNLINK, EACH, DIFFERENCE = 100, 200, 64, 1e-6


def play(options: argparse.Namespace, folder: Path) -> None:
    server = Server(folder, retry_seconds=0.3, tick_seconds=0.05)
    clients: list[Client] = []
    try:
        with server.administrator() as admin:
            training = {"mode": "iteration", **shape_of(options.bundle), "iterations": options.iterations}
            settings = {"training": training, "per_round": options.clients, "over_selection": 1,
                        "rounds": options.rounds, "minimum": options.clients}  # fmt: skip
            name = admin.upload_bundle(options.bundle)
            admin.post("/v1/jobs", {"name": "scalars", "bundle": name, "settings": settings})
            token = admin.post("/v1/tokens", {"uses": options.clients})["token"]
            rows = read_rows(options.data / "train.jsonl", 50 * options.clients)
            for number, part in enumerate(shares(rows, options.clients)):
                data = write_rows(folder / f"client-{number}.jsonl", part)
                clients.append(
                    Client(server, folder / f"client-{number}", data, token, "--rounds", str(options.rounds))
                )
            while admin.get("/v1/jobs/scalars")["state"] != "ended":
                time.sleep(0.5)
            for client in clients:
                client.process.wait(60)
    finally:
        for client in clients:
            client.stop()
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        play(options, folder)
        store = Store(Settings(data_dir=folder / "data", admin_token=SecretStr(TOKEN)))
        job = find_job(store, "scalars")
        weights = store.models.load(job, job.version).weights
        records = store.models.record_bytes(job, 0)
        uplink = max(
            len(encode_report(participant.report))
            for data in records
            for record in decode_records(data)
            for participant in record.participants
        )
        difference = 0.0
        for home in sorted(folder.glob("client-*/home")):
            kept = DeviceStore.only(home).job(job.id).weights(job.bundle)
            assert kept is not None
            assert kept.version == job.version, "a client is not in step"
            found = (float(np.abs(kept.weights[name] - value).max()) for name, value in weights.items())
            difference = max(difference, *found)
    downlink, allowed = max(map(len, records)), DOWNLINK + EACH * options.clients
    size = sum(value.nbytes for value in weights.values())
    print(machine())
    print(f"{len(records)} iterations of {options.clients} clients; weights: {size:,} bytes")
    print(f"  up, for each client and iteration   {uplink:>8} bytes (at most {UPLINK})")
    print(f"  down, for each iteration            {downlink:>8} bytes (at most {allowed})")
    print(f"  largest difference after {job.version} steps  {difference:>12.3g} (at most {DIFFERENCE})")
    sys.exit(uplink > UPLINK or downlink > allowed or difference > DIFFERENCE)


if __name__ == "__main__":
    main()

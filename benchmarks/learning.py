"""Does a fleet of real clients learn? A server, some `spry join` processes, and held-out accuracy round by round.

    python benchmarks/learning.py --bundle bundle/ --data DATA/snips --mode epoch
    python benchmarks/learning.py --bundle bundle/ --data DATA/snips --mode iteration

DATA/snips holds train.jsonl and test.jsonl; the bundle is a classifier of their labels.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fleet import Client, Server, machine, read_rows, shape_of, shares, write_rows

TARGET = 0.90


def learn(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    server = Server(folder, retry_seconds=1, tick_seconds=0.05)
    rows = read_rows(options.data / "train.jsonl", options.examples)
    held_out = write_rows(folder / "held-out.jsonl", read_rows(options.data / "test.jsonl", options.held_out))
    clients: list[Client] = []
    try:
        with server.administrator() as admin:
            settings = json.loads(options.settings)
            training = {"mode": options.mode, **shape_of(options.bundle)} | settings.pop("training", {})
            job = admin.post("/v1/jobs", {
                "name": "learning",
                "bundle": admin.upload_bundle(options.bundle),
                "settings": {
                    "training": training, "per_round": options.clients, "over_selection": 1, "rounds": options.rounds,
                    "held_out": admin.upload_held_out(held_out), "evaluate_every": options.every, "deadline": 600,
                    "target": options.target, "seed": 1,
                } | settings,
            })  # fmt: skip
            token = admin.post("/v1/tokens", {"uses": options.clients})["token"]
            started = time.monotonic()
            for number, part in enumerate(shares(rows, options.clients)):
                data = write_rows(folder / f"client-{number}.jsonl", part)
                clients.append(Client(server, folder / f"client-{number}", data, token))
            print(f"{job['name']}: {options.clients} clients, {len(rows)} examples, mode {options.mode}")
            found = follow(admin)
            seconds = time.monotonic() - started
    finally:
        for client in clients:
            client.stop()
        server.stop()
    return {**found, "mode": options.mode, "minutes": seconds / 60, "machine": machine()}


def follow(admin: Any) -> dict[str, Any]:
    told = 0
    while True:
        job = admin.get("/v1/jobs/learning")
        values = {
            row["round"]: row["value"] for row in admin.get("/v1/jobs/learning/metrics") if row["name"] == "accuracy"
        }
        for number in sorted(values)[told:]:
            told += 1
            print(f"  round {number:>4}  accuracy {values[number]:.4f}", flush=True)
        if job["state"] == "ended":
            best = max(values.values(), default=0.0)
            reached = next((number for number in sorted(values) if values[number] >= TARGET), None)
            return {"rounds": job["done"], "best": best, "rounds_to_target": reached, "reason": job["reason"]}
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--mode", choices=("epoch", "iteration"), default="epoch")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--examples", type=int, default=0, help="of the training file; all when left out")
    parser.add_argument("--held-out", type=int, default=0, help="of the test file; all when left out")
    parser.add_argument("--every", type=int, default=1, help="rounds between evaluations")
    parser.add_argument("--target", type=float, default=TARGET, help="stop at this accuracy")
    parser.add_argument("--settings", default="{}", help="other settings of the job, as JSON")
    parser.add_argument("--work", type=Path, help="a folder to keep logs in")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = learn(options, options.work or Path(temporary))
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{found['machine']}\nmode {found['mode']}: best accuracy {found['best']:.4f} (target {options.target}), "
              f"reached in round {found['rounds_to_target']}; {found['rounds']} rounds in {found['minutes']:.1f} "
              f"minutes; {found['reason']}")  # fmt: skip
    sys.exit(found["best"] < options.target)


if __name__ == "__main__":
    main()

"""Measure how long it takes to draw directions: normals per second, one LoRA unit, all units of MiniLM.

    python benchmarks/directions.py [--json]

CPU time of one thread, median of repeated runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import get_args

from edge_client.gradient.philox import draw
from edge_client.wire.protocol import DirectionKind

HIDDEN, BLOCKS, TARGETS, BATCH = 384, 6, 2, 8  # MiniLM, LoRA on the attention's query and value projections
UNIT = 2 * HIDDEN  # weights of a LoRA pair of rank 1
BULK = 1 << 20


def median_ms(work: Callable[[], object], repeats: int) -> float:
    work()
    times: list[float] = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def measure(kind: DirectionKind) -> dict[str, float]:
    def one_unit(directions: int) -> object:
        return draw(1, 0, UNIT, examples=BATCH, directions=directions, kind=kind)

    def all_units() -> object:
        return [draw(1, unit, UNIT, examples=BATCH, kind=kind) for unit in range(BLOCKS * TARGETS)]

    bulk = median_ms(lambda: draw(1, 0, BULK, kind=kind), 9)
    return {
        "values_per_second": BULK / bulk * 1e3,
        "one_unit_ms": median_ms(lambda: one_unit(1), 201),
        "one_unit_8_directions_ms": median_ms(lambda: one_unit(8), 51),
        "all_units_ms": median_ms(all_units, 51),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json: bool = parser.parse_args().json
    kinds: tuple[DirectionKind, ...] = get_args(DirectionKind)
    figures = {kind: measure(kind) for kind in kinds}
    if as_json:
        print(json.dumps(figures))
        return
    print(f"hidden {HIDDEN}, {BLOCKS * TARGETS} LoRA units of {UNIT} weights, batch {BATCH}")
    print(f"{'kind':<12}{'values/s':>12}{'one unit':>12}{'K = 8':>12}{'all units':>12}")
    for kind, row in figures.items():
        times = "".join(f"{row[name]:>9.3f} ms" for name in list(row)[1:])
        print(f"{kind:<12}{row['values_per_second'] / 1e6:>10.1f} M{times}")


if __name__ == "__main__":
    main()

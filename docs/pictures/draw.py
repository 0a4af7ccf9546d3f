"""The pictures of docs/how-it-works.md and docs/scale.md, as SVG text.

    python docs/pictures/draw.py [--passes runs/passes/snips-0.1]

`costs.json`, `scale.json` and `passes.json` beside this file are what commands printed; draw again after replacing
them. `--passes` reads the last one from the runs of `benchmarks/paper.py --tables passes`. Every picture lies on a card
of its own colour, so that it reads on light and dark pages, whichever of them a viewer says it has.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STYLE = """
svg { --card: #ffffff; --line: #d0d7de; --ink: #1f2328; --dim: #59636e; --soft: #f3f5f8;
      --value: #0969da; --tangent: #bc4c00; --exact: #1a7f37; --value-soft: #ddf0ff; --tangent-soft: #ffe9d6;
      --exact-soft: #dcf5e2; --other: #8250df; }
@media (prefers-color-scheme: dark) {
  svg { --card: #0d1117; --line: #3d444d; --ink: #e6edf3; --dim: #9ba7b4; --soft: #1a212b;
        --value: #58a6ff; --tangent: #f0883e; --exact: #3fb950; --value-soft: #12263f; --tangent-soft: #3a230f;
        --exact-soft: #12301b; --other: #a78bfa; }
}
text { font: 15px -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; fill: var(--ink); }
.small { font-size: 13px; fill: var(--dim); }
.strong { font-weight: 600; }
.code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; }
"""


class Picture:
    """Shapes in the order they are drawn, one over the other."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(title)}</title><desc id="description">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
        ]
        self.box(0.5, 0.5, width - 1, height - 1, fill="card", radius=10)

    def box(self, x: float, y: float, width: float, height: float, *, fill: str, line: str = "line", radius: int = 6,
            dashed: bool = False) -> None:  # fmt: skip
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
            f'fill="var(--{fill})" stroke="var(--{line})"{dashes}/>'
        )

    def text(self, x: float, y: float, words: str, *, at: str = "middle", kind: str = "", colour: str = "") -> None:
        style = f' style="fill: var(--{colour})"' if colour else ""
        named = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{at}"{named}{style}>{escape(words)}</text>')

    def arrow(self, points: Sequence[tuple[float, float]], colour: str, *, dashed: bool = False) -> None:
        """Along straight lines; its head points right, down or up."""
        line = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<polyline points="{line}" fill="none" stroke="var(--{colour})" stroke-width="2.5"{dashes}/>'
        )
        (x0, y0), (x, y) = points[-2:]
        back, side = (9, 5)
        if x != x0:
            corners = f"{x - back:g},{y - side:g} {x + 2:g},{y:g} {x - back:g},{y + side:g}"
        else:
            toward = 1 if y > y0 else -1
            corners = f"{x - side:g},{y - toward * back:g} {x:g},{y + toward * 2:g} {x + side:g},{y - toward * back:g}"
        self.parts.append(f'<polygon points="{corners}" fill="var(--{colour})"/>')

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: str = "line", *, dashed: bool = False) -> None:
        dashes = ' stroke-dasharray="6 5"' if dashed else ""
        ends = f'x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}"'
        self.parts.append(f'<line {ends} stroke="var(--{colour})" stroke-width="1.5"{dashes}/>')

    def save(self, name: str) -> None:
        (HERE / name).write_text("\n".join([*self.parts, "</svg>\n"]))


def dual_step() -> None:
    picture = Picture(
        1000, 440, "The dual step",
        "Values flow through embedding, six blocks and the head. Tangents start at the cut, block 3, and flow beside "
        "the values to the head. Out come the loss, the jvp, and the head's exact gradient.",
    )  # fmt: skip
    top, height, width, left, apart = 142, 130, 78, 104, 96
    names = ["embed", *(f"block {i}" for i in range(6)), "head"]
    edges = [left + apart * i for i in range(len(names))]
    cut, values, tangents = 4, top + 38, top + 94
    for i, (name, x) in enumerate(zip(names, edges, strict=True)):
        picture.box(x, top, width, height, fill="tangent-soft" if i >= cut else "soft")
        picture.text(x + width / 2, top - 30, name, kind="strong")
        kind = "plain" if i < cut else "enter" if i == cut else "dual"
        picture.text(x + width / 2, top - 11, kind, kind="code", colour="dim")
    # values
    picture.text(50, values - 10, "tokens", kind="small")
    picture.arrow([(22, values), (edges[0] - 2, values)], "value")
    for i, x in enumerate(edges):
        picture.line(x, values, x + width, values, "value")
        if i:
            picture.arrow([(edges[i - 1] + width, values), (x - 2, values)], "value")
    picture.text(edges[1] + width / 2, values - 10, "value x", kind="small", colour="value")
    # tangents
    for i in range(cut, len(edges)):
        x = edges[i]
        begin = x + width / 2 if i == cut else x
        picture.line(begin, tangents, x + width, tangents, "tangent")
        if i > cut:
            picture.arrow([(edges[i - 1] + width, tangents), (x - 2, tangents)], "tangent")
    picture.text(edges[cut + 1] + width / 2, tangents + 22, "tangent dx", kind="small", colour="tangent")
    for i in (cut, cut + 2):
        x = edges[i] + width / 2
        picture.box(x - 45, 308, 90, 34, fill="card", line="tangent")
        picture.text(x, 330, f"v of unit {(i - 1) * 2}", kind="small", colour="tangent")
        picture.arrow([(x, 308), (x, tangents + 3)], "tangent", dashed=True)
    seed = "directions, drawn from the task's seed:"
    picture.text(edges[cut] - 18, 330, seed, at="end", kind="small", colour="tangent")
    # the cut
    x = edges[cut] - (apart - width) / 2
    picture.line(x, 40, x, top + height + 16, "dim", dashed=True)
    picture.text(x, 30, "the cut: the first block of this client's units", kind="small")
    picture.text((edges[0] + x) / 2, 62, "prefix: an ordinary forward pass;", kind="small")
    picture.text((edges[0] + x) / 2, 80, "kept where a batch comes again", kind="small")
    picture.text((x + edges[-1] + width) / 2 + 20, 71, "suffix: every product serves both streams", kind="small")
    # what comes out
    right = edges[-1] + width
    for y, label, colour in ((values, "loss", "value"), (tangents, "jvp", "tangent")):
        picture.arrow([(right, y), (right + 26, y)], colour)
        picture.text(right + 34, y + 5, label, at="start", kind="strong", colour=colour)
    x = edges[-1] + width / 2
    picture.arrow([(x, top + height + 4), (x, 304)], "exact")
    picture.box(x - 38, 308, 152, 34, fill="exact-soft", line="exact")
    picture.text(x + 38, 330, "head: exact gradient", kind="small", colour="exact")
    picture.box(104, 372, 840, 48, fill="soft")
    meaning = "one number from the pass, times the direction that the seed gave"
    picture.text(524, 402, f"gradient estimate of a unit = jvp · v: {meaning}")
    picture.save("dual-step.svg")


def costs() -> None:
    measured = json.loads((HERE / "costs.json").read_text())
    rows = _cost_rows(measured["rows"])
    picture = Picture(
        1000, 92 + 44 * len(rows), "What a step costs",
        "; ".join(f"{name}: {time:.1f} forward passes, {memory:.1f} MB" for name, time, memory, _ in rows),
    )  # fmt: skip
    left, middle, half = 300, 660, 270
    picture.text(left, 36, "time, in forward passes", at="start", kind="strong")
    picture.text(middle, 36, "working memory, MB", at="start", kind="strong")
    slowest, largest = max(row[1] for row in rows), max(row[2] for row in rows)
    for i, (name, time, memory, colour) in enumerate(rows):
        y = 58 + 44 * i
        picture.text(left - 16, y + 20, name, at="end")
        for start, value, most in ((left, time, slowest), (middle, memory, largest)):
            width = max(value / most * half, 2)
            picture.box(start, y, width, 28, fill=colour, line=colour, radius=4)
            picture.text(start + width + 10, y + 20, f"{value:.1f}", at="start", kind="strong")
    shape = f"{measured['batch']} examples of {measured['length']} tokens, one thread"
    note = f"MiniLM, int8, {shape}; eager PyTorch in float32. Memory: the peak above what is loaded"
    picture.text(24, 74 + 44 * len(rows), note, at="start", kind="small")
    picture.save("costs.svg")


def _cost_rows(rows: list[dict[str, Any]]) -> list[tuple[str, float, float, str]]:
    """Name, forward passes, megabytes, colour: the steps of ONNX Runtime at its middle cut, then eager PyTorch's."""
    onnx = {(row["step"], row["cut"]): row for row in rows if row["runtime"] == "onnx"}
    eager = {row["step"]: row for row in rows if row["runtime"].startswith("eager")}
    cuts = sorted({cut for step, cut in onnx if step == "dual"})
    forward, middle = onnx["forward", ""], cuts[len(cuts) // 2]
    passes = [
        ("forward alone", forward, "value"),
        ("dual (forward, cut in the middle)", onnx["dual", middle], "tangent"),
        ("dual, prefix kept", onnx["suffix", middle], "tangent"),
        ("exact, cut in the middle", onnx["exact", middle], "exact"),
        ("LoRA backprop, PyTorch", eager["backprop"], "other"),
        ("torch.func.jvp, PyTorch", eager["func.jvp"], "other"),
        ("central difference, PyTorch", eager["central"], "other"),
    ]
    found = [(name, row["cpu_ms"] / forward["cpu_ms"], row["peak_mb"], colour) for name, row, colour in passes]
    # two forward passes by definition; the programs are those of the forward pass
    found.insert(3, ("central difference, on the device", 2.0, forward["peak_mb"], "value"))
    return found


def scale() -> None:
    """What a server carries, by the devices of its fleet: each panel begins at 0."""
    found = json.loads((HERE / "scale.json").read_text())["found"]
    picture = Picture(
        1000, 330, "A fleet that grows",
        "Check-ins a second, the server's CPU, its memory and the 99th percentile of answers, for 1,000, 10,000 and "
        "100,000 devices: from 10,000 on they hardly grow.",
    )  # fmt: skip
    panels = [
        ("check-ins a second", "check_ins_per_second", "{:.0f}"), ("server, of a core", "server_cpu", "{:.2f}"),
        ("server, MB", "server_mb", "{:.0f}"), ("99th percentile, ms", "p99_ms", "{:.0f}"),
    ]  # fmt: skip
    for i, (title, name, form) in enumerate(panels):
        left, bottom, values = 40 + 240 * i, 250, [one[name] for one in found]
        picture.text(left + 100, 50, title, kind="strong")
        picture.line(left, bottom, left + 200, bottom)
        spots = [(left + 30 + 70 * n, bottom - 150 * value / max(values)) for n, value in enumerate(values)]
        for (x, y), (further, height) in pairwise(spots):
            picture.line(x, y, further, height, "value")
        for (x, y), value, one in zip(spots, values, found, strict=True):
            picture.box(x - 4, y - 4, 8, 8, fill="value", line="value", radius=4)
            picture.text(x, y - 14, form.format(value), kind="small")
            picture.text(x, bottom + 24, f"{one['devices']:,}", kind="small")
    picture.text(500, 310, "devices, each ten times as many as before", kind="small")
    picture.save("scale.svg")


COLOURS = ("dim", "tangent", "other", "exact", "value", "line")
"""Of the lines of a chart, in the order of their names."""


def gathered_passes(folder: Path) -> None:
    """Read runs: after each evaluation, the forward passes that one of a round's devices has spent in all rounds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for rounds in sorted(folder.glob("*/seed-0/rounds.jsonl")):
        spent, points = 0.0, list[tuple[float, float]]()
        for line in map(json.loads, rounds.read_text().splitlines()):
            spent += line["device_passes"] / line["clients"]
            if "accuracy" in line:
                points.append((round(spent, 1), round(line["accuracy"], 4)))
        found[rounds.parts[-3]] = points
    (HERE / "passes.json").write_text(json.dumps(found, indent=1) + "\n")


def passes() -> None:
    """Accuracy over the forward passes of a device; the left half has the first of them."""
    found: dict[str, list[tuple[float, float]]] = json.loads((HERE / "passes.json").read_text())
    picture = Picture(
        1000, 470, "Accuracy over forward passes",
        "Accuracy on Snips by the forward passes that a device has spent in thirty rounds, for each way to train: "
        + ", ".join(f"{name} {points[-1][1]:.1%} after {points[-1][0]:.0f}" for name, points in found.items()),
    )  # fmt: skip
    left, right, top, bottom = 70, 780, 40, 400
    most = max(points[-1][0] for points in found.values())
    low = min(accuracy for points in found.values() for _, accuracy in points)
    low = int(low * 20) / 20

    def spot(spent: float, accuracy: float) -> tuple[float, float]:
        return left + (right - left) * spent / most, bottom - (bottom - top) * (accuracy - low) / (1 - low)

    for step in range(round((1 - low) * 20) + 1):
        x, y = spot(0, low + step / 20)
        picture.line(x, y, right, y)
        picture.text(x - 10, y + 5, f"{low + step / 20:.0%}", at="end", kind="small")
    for step in range(5):
        x, _ = spot(most * step / 4, low)
        picture.text(x, bottom + 24, f"{most * step / 4:,.0f}", kind="small")
    picture.text(
        (left + right) / 2, bottom + 52, "forward passes of a device that takes part in every round", kind="small"
    )
    heights: list[float] = []
    for (name, points), colour in zip(sorted(found.items(), key=lambda one: -one[1][-1][1]), COLOURS, strict=False):
        spots = [spot(*point) for point in points]
        for (x, y), (further, height) in pairwise(spots):
            picture.line(x, y, further, height, colour)
        for x, y in spots:
            picture.box(x - 3, y - 3, 6, 6, fill=colour, line=colour, radius=3)
        heights.append(max(spots[-1][1], heights[-1] + 22 if heights else 0.0))
        picture.text(right + 16, heights[-1] + 5, f"{name} {points[-1][1]:.1%}", at="start", colour=colour)
    picture.save("passes.svg")


def fleet_round() -> None:
    picture = Picture(
        1000, 470, "A round of a fleet",
        "Twelve units, two per block, are dealt to four clients in turn. Every client also trains the head. The server "
        "averages each unit over its holders, moves the weights as far as they agree, and publishes the next version.",
    )  # fmt: skip
    units, clients = 12, 4
    left, top, wide, high = 190, 92, 104, 22
    for client in range(clients):
        x = left + client * wide
        picture.text(x + wide / 2 - 5, 50, f"client {client + 1}", kind="strong")
        picture.text(x + wide / 2 - 5, 70, f"cut: block {client // 2}", kind="small")
    for unit in range(units):
        y = top + unit * high
        name = f"block {unit // 2} {('query', 'value')[unit % 2]}"
        picture.text(left - 14, y + 15, name, at="end", kind="small")
        for client in range(clients):
            mine = unit % clients == client
            picture.box(left + client * wide, y, wide - 10, high - 4, fill="tangent" if mine else "soft",
                        line="tangent" if mine else "line", radius=3)  # fmt: skip
    y = top + units * high
    picture.text(left - 14, y + 15, "head", at="end", kind="small")
    for client in range(clients):
        picture.box(left + client * wide, y, wide - 10, high - 4, fill="exact", line="exact", radius=3)
    below = y + high + 22
    for client in range(clients):
        x = left + client * wide + wide / 2 - 5
        picture.arrow([(x, y + high), (x, below)], "dim")
    picture.box(left, below + 6, clients * wide - 10, 50, fill="soft")
    middle = left + (clients * wide - 10) / 2
    picture.text(middle, below + 27, "mode epoch: the trained units and the head", kind="small", colour="ink")
    picture.text(middle, below + 46, "mode iteration: K · B numbers after every step", kind="small", colour="ink")
    x = left + clients * wide + 30
    steps = [
        ("the server", "averages each unit over its holders,", "weighted by their examples"),
        ("then moves it", "each number as far as they agree;", "the head's mean is taken as it is"),
        ("and publishes", "the units that changed, or in mode", "iteration all seeds and numbers"),
    ]
    for i, (what, first, second) in enumerate(steps):
        y = 86 + i * 118
        picture.box(x, y, 320, 88, fill="card")
        picture.text(x + 18, y + 28, what, at="start", kind="strong")
        picture.text(x + 18, y + 52, first, at="start", kind="small")
        picture.text(x + 18, y + 71, second, at="start", kind="small")
        if i + 1 < len(steps):
            picture.arrow([(x + 160, y + 88), (x + 160, y + 115)], "dim")
    right = left + clients * wide - 10
    picture.arrow([(right, below + 31), (right + 20, below + 31), (right + 20, 130), (x - 2, 130)], "dim")
    picture.save("round.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--passes", type=Path, help="the folder of the runs of one data set")
    if (runs := parser.parse_args().passes) is not None:
        gathered_passes(runs)
    for draw in (dual_step, costs, scale, passes, fleet_round):
        draw()

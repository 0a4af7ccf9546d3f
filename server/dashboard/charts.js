// Curves over rounds, drawn by uPlot (a script of its own, loaded before this one).

import { bytes, digits, duration, percent, percents } from "./format.js";
import { fill, h, text } from "./dom.js";

const uPlot = globalThis.uPlot;
const HEIGHT = 200;
const BARS = 60; // so many rounds at most are drawn as bars
const ROUNDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000];
const BY_ROUND = { title: "round", format: String };
const dark = matchMedia("(prefers-color-scheme: dark)");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const lines = (names) => (table) =>
  names
    .filter(([name]) => table.metrics.has(name))
    .map(([name, label]) => ({
      label,
      values: table.metrics.get(name),
    }));

const HEADS = ["accuracy_head", "f1_head"];

/** Held-out examples tell what to beat: always guessing their most frequent class, and the task layer by itself. */
function toBeat({ metrics }, measured) {
  const found = HEADS.filter((name) => metrics.has(name)).map((name) => ({
    label: "the task layer without the units",
    base: "head",
    values: metrics.get(name),
  }));
  const share = metrics.get("majority")?.get(0);
  if (share != null) {
    const rounds = measured.flatMap(({ values }) => [...values.keys()]);
    const values = new Map(rounds.map((round) => [round, share]));
    found.push({ label: "always the most frequent class", base: "guess", values });
  }
  return found;
}

/** What is shown: a title, how a number reads, and the series that a job has. */
const CHARTS = [
  {
    name: "accuracy",
    title: "Accuracy",
    format: percent,
    tick: percents,
    top: 1,
    series: (table) => {
      const measured = lines([
        ["accuracy", "at the server"],
        ["accuracy_global", "global on devices"],
        ["accuracy_personal", "personal"],
        ["f1", "F1 at the server"],
        ["f1_global", "F1, global on devices"],
        ["f1_personal", "F1, personal"],
      ])(table);
      return measured.length ? [...measured, ...toBeat(table, measured)] : [];
    },
    note: ({ metrics }) =>
      HEADS.some((name) => metrics.has(name))
        ? "Without the units: the task layer as it stands, on the model as it was before the units learned, by the same " +
          "held-out examples. A task layer that nothing else was trained beside might do better."
        : "",
    none: ({ settings }) =>
      settings.held_out || settings.device_evaluation
        ? "The first measurement is not done yet."
        : "Not measured: a job needs held-out examples (--held-out), or device_evaluation among its settings.",
  },
  {
    name: "loss",
    title: "Loss",
    format: digits,
    series: lines([
      ["loss", "mean of the clients"],
      ["test_loss", "held-out examples"],
      ["test_loss_global", "global on devices"],
    ]),
    none: ({ privacy }) =>
      privacy ? "Not told: the job keeps a privacy budget, which pays for weights alone." : "The first round is not done yet.",
  },
  {
    name: "epsilon",
    title: "Privacy spent",
    format: digits,
    floor: 0,
    when: ({ privacy }) => Boolean(privacy),
    series: lines([["epsilon", "epsilon of the device that took part most often"]]),
    none: () => "The first round is not done yet.",
  },
  {
    name: "bytes",
    title: "Bytes per round",
    format: bytes,
    bars: true,
    floor: 0,
    series: (table, job) =>
      ["up", "down"]
        .map((label) => ({ label, values: side(table.traffic, label, job.progress) }))
        .filter(({ values }) => values.size),
    note: (table) => (table.traffic.has(0) ? `The bundle itself: ${bytes(table.traffic.get(0).down)} down.` : ""),
    none: () => "No round has sent or fetched anything yet.",
  },
  {
    name: "seconds",
    title: "Time per round",
    format: duration,
    floor: 0,
    series: lines([["seconds", "from the first device to the result"]]),
    none: () => "The first round is not done yet.",
  },
];

/** Of the rounds that are over: half of one would look like little. */
function side(traffic, name, newest) {
  const last = newest?.state === "open" ? newest.number - 1 : newest?.number;
  return new Map(
    [...traffic].filter(([round]) => round > 0 && round <= last).map(([round, row]) => [round, row[name]]),
  );
}

export class Charts {
  constructor(parent, kinds = CHARTS) {
    this.charts = kinds.map((kind) => new Chart(kind, parent));
    new ResizeObserver(() => this.charts.forEach((chart) => chart.fit())).observe(parent);
    dark.addEventListener("change", () => this.charts.forEach((chart) => chart.paint()));
  }

  /** `table` is what the kinds take their series from; `metrics`: name -> round -> value, `traffic`: round -> bytes. */
  show(job, table) {
    for (const chart of this.charts) chart.show(job, table);
  }
}

class Chart {
  constructor(kind, parent) {
    this.kind = kind;
    this.plot = null;
    this.known = "";
    this.canvas = h("div", { class: "plot", "aria-hidden": "true" });
    this.legend = h("ul", { class: "legend", "aria-hidden": "true" });
    this.summary = h("p", { class: "hidden-text" });
    this.note = h("p", { class: "muted" });
    this.table = h("table", {}, h("caption", {}, kind.title));
    this.details = h(
      "details",
      {},
      h("summary", {}, "As a table"),
      h(
        "div",
        { class: "scroll tall", tabindex: 0, role: "region", "aria-label": `${kind.title} as a table` },
        this.table,
      ),
    );
    this.details.addEventListener("toggle", () => this.tell());
    const title = h("h2", { id: `${kind.name}-title` }, kind.title);
    this.section = h(
      "section",
      { class: "card", "aria-labelledby": title.id, id: `chart-${kind.name}` },
      title,
      this.legend,
      this.canvas,
      this.summary,
      this.note,
      this.details,
    );
    this.section.hidden = Boolean(kind.when);
    parent.append(this.section);
  }

  show(job, table) {
    this.section.hidden = this.kind.when ? !this.kind.when(job) : false;
    if (this.section.hidden) return;
    this.series = this.kind.series(table, job);
    this.axis = table.axis ?? BY_ROUND; // what stands below the curves
    const shown = this.series.length > 0;
    this.section.hidden = !shown && Boolean(this.kind.optional);
    text(this.note, [shown ? "" : this.kind.none(job), this.kind.note?.(table)].filter(Boolean).join(" "));
    this.note.hidden = !this.note.textContent;
    this.rounds = [...new Set(this.series.flatMap(({ values }) => [...values.keys()]))].sort((a, b) => a - b);
    for (const part of [this.canvas, this.legend, this.details]) part.hidden = !shown;
    if (shown) this.draw();
    this.tell();
  }

  draw() {
    const data = [
      this.rounds,
      ...this.series.map(({ values }) => this.rounds.map((round) => values.get(round) ?? null)),
    ];
    this.bars = this.kind.bars && this.rounds.length <= BARS;
    const kind = [this.bars, this.axis.title, ...this.series.map(({ label }) => label)].join();
    if (this.plot === null || kind !== this.known) {
      this.plot?.destroy();
      this.known = kind;
      this.legend.replaceChildren(
        ...this.series.map(({ label, base }, number) =>
          h("li", {}, h("span", { class: `swatch ${base ? `base ${base}` : `series-${number + 1}`}` }), `${label} `, h("b")),
        ),
      );
      this.plot = new uPlot(this.options(), data, this.canvas);
    } else this.plot.setData(data);
    this.read(null);
  }

  options() {
    const { kind } = this;
    const ink = () => colour("muted");
    const grid = { stroke: () => colour("line"), width: 1 };
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font: "12px system-ui, sans-serif" };
    return {
      width: this.width(),
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 8, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: { time: false, range: (_, low, high) => around(low, high, this.bars) },
        y: { range: (_, low, high) => this.range(low, high) },
      },
      axes: [
        { ...axis, incrs: ROUNDS, space: 44, size: 30, values: (_, values) => values.map(this.axis.format) },
        { ...axis, size: 62, space: 36, values: (_, values) => values.map(kind.tick ?? kind.format) },
      ],
      series: [{}, ...this.series.map((_, number) => this.line(number))],
      hooks: { setCursor: [(plot) => this.read(plot.cursor.idx)] },
    };
  }

  line(number) {
    const { base } = this.series[number];
    if (base) {
      const stroke = () => colour("muted");
      const head = base === "head"; // measured in few rounds
      return { stroke, width: 1, dash: head ? [3, 3] : [], spanGaps: true, points: { show: head, size: 4, fill: stroke } };
    }
    const stroke = () => colour(`series-${number + 1}`);
    if (this.bars) {
      const align = number ? 1 : -1;
      return {
        stroke,
        fill: stroke,
        width: 0,
        paths: uPlot.paths.bars({ size: [0.4, 18], align }),
        points: { show: false },
      };
    }
    return {
      stroke,
      width: 2,
      dash: [[], [6, 4], [2, 3]][number % 3],
      spanGaps: true,
      points: { show: this.rounds.length < 30, size: 5, fill: stroke },
    };
  }

  range(low, high) {
    if (low === null) return [0, 1];
    const { floor, top } = this.kind;
    const room = (high - low || Math.abs(high) || 1) * 0.1;
    return [
      floor ?? Math.max(low - room, Math.min(low, 0)),
      Math.min(high + room, top === undefined ? Infinity : Math.max(top, high)),
    ];
  }

  /** The values under the pointer, or the newest. */
  read(index) {
    const at = index ?? this.rounds.length - 1;
    this.series.forEach(({ values }, number) => {
      const value = index === null ? [...values.values()].at(-1) : values.get(this.rounds[at]);
      text(this.legend.children[number].querySelector("b"), value == null ? "–" : this.kind.format(value));
    });
    this.legend.dataset.round = index === null ? "" : `${this.axis.title} ${this.axis.format(this.rounds[at])}`;
  }

  tell() {
    const { kind, axis } = this;
    const told = this.series.map(({ label, values }) => {
      const all = [...values.values()];
      const from = all.length > 1 ? `, first ${kind.format(all[0])}` : "";
      const where = `${axis.title} ${axis.format([...values.keys()].at(-1))}`;
      return `${label} ${kind.format(all.at(-1))} in ${where}${from}`;
    });
    text(this.summary, told.length ? `Newest: ${told.join("; ")}.` : "");
    if (this.details.open && this.series.length) {
      const columns = this.series.map(({ label, values }) => [
        label,
        (round) => kind.format(values.get(round)),
        "number",
      ]);
      this.table.tHead?.remove();
      this.table.tBodies[0]?.remove();
      fill(this.table, [[axis.title, axis.format], ...columns], this.rounds.toReversed(), (round) => round);
    }
  }

  width() {
    return Math.max(this.canvas.clientWidth, 200);
  }

  fit() {
    if (this.plot && this.canvas.clientWidth && this.plot.width !== this.width())
      this.plot.setSize({ width: this.width(), height: HEIGHT });
  }

  paint() {
    this.plot?.redraw(false, true);
  }
}

/** A first round alone is a point in the middle, not an axis without a length. */
function around(low, high, bars) {
  if (low === null) return [0, 1];
  const room = bars || low === high ? 0.7 : 0;
  return [low - room, high + room];
}

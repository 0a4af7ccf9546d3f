// Jobs beside each other: their curves in one picture each, and in what they differ.

import { call } from "./api.js";
import { Charts } from "./charts.js";
import { $, complain, fill, h, keyed, text } from "./dom.js";
import { bytes, count, digits, duration, percent, percents } from "./format.js";
import { inHash } from "./pages.js";
import { flat } from "./settings.js";

const EVERY = 5000; // milliseconds between two looks, at least
const MOST = 6; // jobs that a picture holds apart

const AXES = {
  rounds: { title: "round", format: String },
  passes: { title: "passes", format: (value) => count(Math.round(value)) },
};

let jobs = new Map();
let shown = null; // the ids and the axis, while the page is shown
let asked = 0;
let charts = null;
let titled = ""; // the jobs that the tables have columns of
const costs = new Map(); // of a job's step; it stays as it is

/** One metric of all of them; of several names, the first that a job has. */
const each = (...names) => ({ compared, x }) =>
  compared.flatMap((one) => {
    const name = names.find((wanted) => one.metrics.has(wanted));
    return name ? [{ label: one.job.name, values: along(one, one.metrics.get(name), x) }] : [];
  });

const kind = (name, title, format, names, more = {}) => ({
  name: `both-${name}`,
  title,
  format,
  series: each(...names),
  none: () => "None of these jobs has measured it.",
  optional: true,
  ...more,
});

const KINDS = [
  kind("accuracy", "Accuracy at the server", percent, ["accuracy", "f1"], { tick: percents, top: 1 }),
  kind("accuracy_global", "Accuracy on devices", percent, ["accuracy_global", "f1_global"], { tick: percents, top: 1 }),
  kind("loss", "Loss of the clients", digits, ["loss"], { optional: false }),
  kind("test_loss", "Loss on held-out examples", digits, ["test_loss", "test_loss_global"]),
  kind("seconds", "Time per round", duration, ["seconds"], { floor: 0 }),
];

/** A curve over rounds, or over the forward passes that a device has made which took part in all of them. */
function along({ job, metrics, cost }, values, x) {
  if (x === "rounds") return values;
  const { mode, iterations, epochs, batch } = job.settings.training;
  const done = new Map();
  let passes = 0;
  for (const [round, reports] of metrics.get("reports") ?? []) {
    const seen = epochs * Math.ceil((metrics.get("examples")?.get(round) ?? batch * reports) / reports / batch);
    passes += cost.passes * (iterations || (mode === "iteration" ? 1 : seen));
    done.set(round, passes);
  }
  return new Map([...values].filter(([round]) => done.has(round)).map(([round, value]) => [done.get(round), value]));
}

/** `known` are all jobs; the address names those that are compared, or else they are the newest two. */
export function openCompare(known) {
  jobs = known;
  shown = { ids: [], x: "" };
  refreshCompare();
}

export function closeCompare() {
  shown = null;
}

function picked() {
  const hash = inHash();
  const named = (name) => [...jobs.values()].find(({ id, name: own }) => id === name || own === name)?.id;
  const ids = [...hash.getAll("compare"), ...hash.getAll("with")].map(named).filter(Boolean);
  const newest = [...jobs.values()].sort((a, b) => b.created - a.created).map(({ id }) => id);
  const x = hash.get("over") in AXES ? hash.get("over") : "rounds";
  return { ids: (ids.length ? [...new Set(ids)] : newest.slice(0, 2)).slice(0, MOST), x };
}

/** Jobs came or changed: look again, though not all the time. */
export function refreshCompare() {
  if (shown === null) return;
  $("compare-few").hidden = jobs.size > 1;
  $("compare-body").hidden = jobs.size < 2;
  const wanted = picked();
  const same = JSON.stringify(wanted) === JSON.stringify(shown);
  if (jobs.size < 2 || (same && Date.now() < asked + EVERY)) return;
  if (!same) shown = wanted;
  asked = Date.now();
  choices();
  load();
}

function choices() {
  keyed(
    $("compare-jobs"),
    [...jobs.values()].sort((a, b) => b.created - a.created),
    ({ id }) => id,
    ({ id, name }) =>
      h("label", { class: "check" }, h("input", { type: "checkbox", value: id }), h("span", {}, name)),
    (label, { id }) => {
      const [box] = label.children;
      box.checked = shown.ids.includes(id);
      box.disabled = !box.checked && shown.ids.length >= MOST;
    },
  );
  text($("compare-most"), shown.ids.length >= MOST ? `${MOST} at a time.` : "");
  $("compare-over").value = shown.x;
}

async function load() {
  const of = shown;
  complain($("compare-error"));
  try {
    const compared = await Promise.all(of.ids.map(one));
    if (of === shown) show(compared, of.x);
  } catch (error) {
    complain($("compare-error"), error.message);
  }
}

async function one(id) {
  const path = `v1/jobs/${encodeURIComponent(id)}`;
  if (!costs.has(id)) costs.set(id, await call("GET", `${path}/cost`));
  return { job: jobs.get(id), cost: costs.get(id), metrics: byName(await call("GET", `${path}/metrics`)) };
}

function byName(rows) {
  const found = new Map();
  for (const { name, round, value } of rows) {
    if (!found.has(name)) found.set(name, new Map());
    found.get(name).set(round, value);
  }
  return found;
}

function show(compared, x) {
  charts ??= new Charts($("compare-charts"), KINDS);
  charts.show(compared[0].job, { compared, x, axis: AXES[x] });
  const columns = (first) => [
    [first, ([name]) => name],
    ...compared.map(({ job }, place) => [job.name, ([, ...values]) => values[place], "side"]),
  ];
  const names = compared.map(({ job }) => job.name).join("\n");
  if (names !== titled) for (const name of ["compare-facts", "compare-settings"]) clear($(name));
  titled = names;
  fill($("compare-facts"), columns("what"), facts(compared), ([name]) => name);
  const found = differing(compared.map(({ job }) => job));
  $("compare-settings-scroll").hidden = !found.length;
  text($("compare-settings-text"), found.length ? "" : "All settings are the same.");
  fill($("compare-settings"), columns("setting"), found, ([name]) => name);
}

/** Other jobs have other columns. */
function clear(table) {
  table.tHead?.remove();
  table.tBodies[0]?.remove();
}

const FACTS = [
  ["state", ({ job }) => job.state],
  ["rounds", ({ job }) => `${count(job.done)} of ${count(job.settings.rounds)}`],
  ["accuracy at the server", ({ job }) => percent(job.metrics.accuracy)],
  ["accuracy on devices", ({ job }) => percent(job.metrics.accuracy_global)],
  ["loss", ({ job }) => digits(job.metrics.loss)],
  ["forward passes of a step", ({ cost }) => digits(cost.passes)],
  ["sent by devices", ({ job }) => bytes(job.up)],
  ["fetched by devices", ({ job }) => bytes(job.down)],
  ["devices that took part", ({ job }) => count(job.devices)],
];

const facts = (compared) =>
  FACTS.map(([name, of]) => [name, ...compared.map(of)]).filter(([, ...values]) => values.some(Boolean));

/** Settings that differ, as `--set` names them; the bundle counts as one. */
function differing(known) {
  const all = known.map((job) => new Map([["bundle", `${job.bundle.slice(0, 12)}…`], ...flat(job.settings)]));
  const names = [...new Set(all.flatMap((settings) => [...settings.keys()]))];
  return names
    .map((name) => [name, ...all.map((settings) => settings.get(name) ?? "")])
    .filter(([name, ...values]) => new Set(values).size > 1 && name !== "seed"); // which is drawn for each job
}

export function startCompare() {
  const look = () => {
    const ids = [...$("compare-jobs").querySelectorAll(":checked")].map(({ value }) => value);
    const over = $("compare-over").value;
    const told = (ids.length ? ids : [""]).map((id) => ["compare", id]);
    location.hash = new URLSearchParams(over === "rounds" ? told : [...told, ["over", over]]).toString();
  };
  $("compare-jobs").addEventListener("change", look);
  $("compare-over").addEventListener("change", look);
}

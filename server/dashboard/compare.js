// Two jobs beside each other: their curves in one picture each, and in what they differ.

import { call } from "./api.js";
import { Charts } from "./charts.js";
import { $, complain, fill, h, keyed, text } from "./dom.js";
import { bytes, count, digits, duration, percent, percents } from "./format.js";
import { inHash } from "./pages.js";
import { flat } from "./settings.js";

const EVERY = 5000; // milliseconds between two looks, at least
const SIDES = ["compare", "with"];

let jobs = new Map();
let shown = null; // the ids of both, while the page is shown
let asked = 0;
let charts = null;

/** One metric of both jobs. */
const both = (name) => (pair) =>
  pair.filter(({ metrics }) => metrics.has(name)).map(({ job, metrics }) => ({ label: job.name, values: metrics.get(name) }));

const kind = (name, title, format, more = {}) => ({
  name: `both-${name}`,
  title,
  format,
  series: both(name),
  none: () => "Neither job has measured it.",
  ...more,
});

const KINDS = [
  kind("accuracy", "Accuracy at the server", percent, { tick: percents, top: 1 }),
  kind("accuracy_global", "Accuracy on devices", percent, { tick: percents, top: 1 }),
  kind("loss", "Loss", digits),
  kind("seconds", "Time per round", duration, { floor: 0 }),
];

/** `known` are all jobs; the address names the two, or else they are the newest. */
export function openCompare(known) {
  jobs = known;
  shown = [];
  refreshCompare();
}

export function closeCompare() {
  shown = null;
}

function picked() {
  const hash = inHash();
  const ids = SIDES.map((side) => [...jobs.values()].find(({ id, name }) => [id, name].includes(hash.get(side)))?.id);
  const newest = [...jobs.values()].sort((a, b) => b.created - a.created).map(({ id }) => id);
  const first = ids[0] ?? newest.find((id) => id !== ids[1]);
  return [first, ids[1] ?? newest.find((id) => id !== first)];
}

/** Jobs came or changed: look again, though not all the time. */
export function refreshCompare() {
  if (shown === null) return;
  $("compare-few").hidden = jobs.size > 1;
  $("compare-body").hidden = jobs.size < 2;
  const ids = picked();
  const same = ids.join() === shown.join();
  if (jobs.size < 2 || (same && Date.now() < asked + EVERY)) return;
  if (!same) shown = ids;
  asked = Date.now();
  choices();
  load();
}

function choices() {
  SIDES.forEach((side, number) => {
    const select = $(`compare-${number + 1}`);
    keyed(
      select,
      [...jobs.values()],
      ({ id }) => id,
      ({ id }) => h("option", { value: id }),
      (option, job) => text(option, job.name),
    );
    select.value = shown[number];
  });
}

async function load() {
  const ids = shown;
  complain($("compare-error"));
  try {
    const rows = await Promise.all(ids.map((id) => call("GET", `v1/jobs/${encodeURIComponent(id)}/metrics`)));
    if (ids === shown) show(ids.map((id, number) => ({ job: jobs.get(id), metrics: byName(rows[number]) })));
  } catch (error) {
    complain($("compare-error"), error.message);
  }
}

function byName(rows) {
  const found = new Map();
  for (const { name, round, value } of rows) {
    if (!found.has(name)) found.set(name, new Map());
    found.get(name).set(round, value);
  }
  return found;
}

function show(pair) {
  charts ??= new Charts($("compare-charts"), KINDS);
  charts.show(pair[0].job, pair);
  const columns = (first) => [
    [first, ([name]) => name],
    ["first", ([, one]) => one, "side"],
    ["second", ([, , other]) => other, "side"],
  ];
  fill($("compare-facts"), columns("what"), facts(pair), ([name]) => name);
  const found = differing(pair.map(({ job }) => job));
  $("compare-settings-scroll").hidden = !found.length;
  text($("compare-settings-text"), found.length ? "" : "All settings are the same.");
  fill($("compare-settings"), columns("setting"), found, ([name]) => name);
}

const FACTS = [
  ["job", (job) => job.name],
  ["state", (job) => job.state],
  ["rounds", (job) => `${count(job.done)} of ${count(job.settings.rounds)}`],
  ["accuracy at the server", (job) => percent(job.metrics.accuracy)],
  ["accuracy on devices", (job) => percent(job.metrics.accuracy_global)],
  ["loss", (job) => digits(job.metrics.loss)],
  ["sent by devices", (job) => bytes(job.up)],
  ["fetched by devices", (job) => bytes(job.down)],
  ["devices that took part", (job) => count(job.devices)],
];

const facts = (pair) =>
  FACTS.map(([name, of]) => [name, ...pair.map(({ job }) => of(job))]).filter(([, one, other]) => one || other);

/** Settings that differ, as `--set` names them; the bundle counts as one. */
function differing(both) {
  const [one, other] = both.map((job) => new Map([["bundle", `${job.bundle.slice(0, 12)}…`], ...flat(job.settings)]));
  const names = [...new Set([...one.keys(), ...other.keys()])];
  return names
    .map((name) => [name, one.get(name) ?? "", other.get(name) ?? ""])
    .filter(([name, first, second]) => first !== second && name !== "seed"); // which is drawn for each job
}

export function startCompare() {
  SIDES.forEach((_, number) =>
    $(`compare-${number + 1}`).addEventListener("change", () => {
      const chosen = SIDES.map((side, place) => [side, $(`compare-${place + 1}`).value]);
      location.hash = new URLSearchParams(chosen).toString();
    }),
  );
}

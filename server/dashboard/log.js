// What happened to a job, and what to do where it stands still.

import { call } from "./api.js";
import { $, complain, fill, h, keyed, sentence } from "./dom.js";
import { ago } from "./format.js";
import { may } from "./people.js";

const EVERY = 2000; // milliseconds between two looks, at least

const COLUMNS = [
  ["when", (line) => ago(line.time)],
  ["who", (line) => line.who],
  ["what", (line) => line.text, "wrap"],
];

let of = null; // the job's id
let asked = 0;
let waiting = null;

/** Commands stand in backquotes. */
const words = (line) => line.split("`").map((part, number) => (number % 2 ? h("code", {}, part) : part));

export function showAdvice(lines) {
  $("advice-enrol").hidden = !may("operator") || !lines.some((line) => line.includes("enrol"));
  $("advice-card").hidden = !lines.length;
  keyed(
    $("advice"),
    lines,
    (line) => line,
    () => h("li"),
    (item, line) => item.replaceChildren(...words(sentence(line))),
  );
}

/** Read the log of the job that is shown, where somebody looks at it. */
export function refreshLog(job) {
  if (job.id !== of) {
    of = job.id;
    $("log").tBodies[0]?.replaceChildren();
  }
  if (!$("log-details").open || waiting !== null) return;
  waiting = setTimeout(load, Math.max(0, asked + EVERY - Date.now()));
}

async function load() {
  waiting = null;
  asked = Date.now();
  const id = of;
  try {
    const lines = await call("GET", `v1/jobs/${encodeURIComponent(id)}/log?limit=100`);
    complain($("log-error"));
    if (id === of) fill($("log"), COLUMNS, lines, (line) => `${line.time} ${line.who} ${line.text}`);
  } catch (error) {
    complain($("log-error"), error.message);
  }
}

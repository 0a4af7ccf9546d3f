// A job's settings, one a line.

import { $, fill, text } from "./dom.js";

const COLUMNS = [
  ["setting", ([name]) => name],
  ["value", ([, value]) => value, "wrap"],
];

/** Settings inside each other by one name each, as `--set` takes them. */
export function flat(settings, before = "") {
  return Object.entries(settings).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? flat(value, `${before}${name}.`)
      : [[before + name, value === null ? "" : told(value)]],
  );
}

/** What JavaScript cannot hold exactly is not shown as if it were. */
const told = (value) => (Number.isInteger(value) && !Number.isSafeInteger(value) ? `about ${value}` : String(value));

export function showSettings(job) {
  text($("settings-text"), `Bundle ${job.bundle.slice(0, 12)}…, job ${job.id}.`);
  fill(
    $("settings"),
    COLUMNS,
    flat(job.settings).filter(([, value]) => value !== ""),
    ([name]) => name,
  );
}

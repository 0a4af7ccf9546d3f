// Updates that were not taken and tasks that were given back, by reason.

import { $, fill, h, text } from "./dom.js";
import { ago, count } from "./format.js";
import { linkTo } from "./pages.js";

const WHY = {
  late: "after the round was over",
  stale: "of another iteration or version",
  invalid: "not what the task asked for",
  norm: "far outside what others sent",
  foreign: "for another device's task",
  "too-large": "larger than the task can be",
  failed: "given back by the device",
};

const deviceOf = ({ device, name }) => h("a", { href: linkTo("device", device) }, name);

export function showRefusals(job, refusals) {
  const rows = Object.entries(job.refused)
    .sort(([, a], [, b]) => b - a)
    .map(([code, number]) => {
      const newest = [...refusals.values()].filter((one) => one.code === code).sort((a, b) => b.id - a.id)[0];
      return { code, number, newest };
    });
  $("refusals-scroll").hidden = !rows.length;
  text($("refusals-text"), rows.length ? "What is refused or given back is counted and never averaged." : "None so far.");
  const columns = [
    ["code", (row) => row.code],
    ["meaning", (row) => WHY[row.code] ?? "", "wrap"],
    ["count", (row) => count(row.number), "number"],
    ["newest", (row) => row.newest?.detail ?? "", "wrap"],
    ["device", (row) => (row.newest ? deviceOf(row.newest) : ""), "named"],
    ["when", (row) => (row.newest ? ago(row.newest.time) : "")],
  ];
  if (rows.length) fill($("refusals"), columns, rows, (row) => row.code);
}

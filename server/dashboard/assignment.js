// Which client trains which unit in the newest round: a picture, its legend, and the same as a table.

import { $, fill, h, text } from "./dom.js";
import { count, partStates, plural } from "./format.js";
import { linkTo } from "./pages.js";

const NAMED = 16; // columns that leave room for names
const STATES = {
  done: "reported",
  open: "training",
  lost: "given back, refused or too late",
  spare: "not needed: the round had enough updates",
  free: "not its part",
};

const stateOf = (part) => (part.reported ? "done" : part.state in STATES ? part.state : "lost");

const PARTS = [
  ["client", (part) => h("a", { href: linkTo("device", part.device) }, part.name)],
  ["state", (part) => (part.reported && part.state === "open" ? "reported this iteration" : partStates[part.state])],
  ["units", (part) => part.unitNames.join(", "), "wrap"],
  ["cut", (part) => part.cut, "number"],
  ["batch", (part) => part.batch, "number"],
  ["runtime", (part) => part.runtime],
  ["step", (part) => part.step, "wrap"],
  ["reason", (part) => part.reason, "wrap"],
];

export function showAssignment(found) {
  const { units, parts } = found ?? { units: [], parts: [] };
  const held = new Set(parts.filter((part) => !["lost", "spare"].includes(stateOf(part))).flatMap((part) => part.units));
  text($("assignment-text"), sentence(found, held));
  $("assignment-scroll").hidden = $("assignment-legend").hidden = !parts.length;
  $("assignment-scroll").parentElement.querySelector("details").hidden = !parts.length;
  if (!parts.length) return;
  if (!$("assignment-legend").children.length) {
    $("assignment-legend").append(
      ...Object.entries(STATES).map(([state, told]) => h("li", {}, h("span", { class: `cell ${state}` }), told)),
    );
  }
  draw($("assignment"), units, parts);
  const rows = parts.map((part) => ({ ...part, unitNames: part.units.map((unit) => units[unit].name) }));
  fill($("parts"), PARTS, rows, (part) => part.task);
}

function sentence(found, held) {
  if (!found) return "No device has a part yet.";
  const { round, units, parts } = found;
  const over = found.state === "done" || found.state === "failed";
  const reported = parts.filter((part) => part.reported).length;
  const clients = new Set(parts.map((part) => part.device)).size;
  const again = parts.length > clients ? ` (${count(parts.length)} parts: some were given out again)` : "";
  return [
    `Round ${round}${over ? `, ${found.state}` : ""}:`,
    `${plural(clients, "client")}${again}, ${count(reported)} reported;`,
    `${count(held.size)} of ${plural(units.length, "unit")} ${over ? "were" : "are"} somebody's part.`,
    "Every client trains the head too.",
  ].join(" ");
}

function draw(picture, units, parts) {
  const size = parts.length <= NAMED ? "large" : parts.length <= 48 ? "medium" : "small";
  picture.className = `matrix ${size}`;
  picture.style.gridTemplateColumns = `max-content repeat(${parts.length}, minmax(var(--cell), var(--widest)))`;
  picture.setAttribute(
    "aria-label",
    `${plural(units.length, "unit")} in rows, ${plural(parts.length, "client")} in columns: ` +
      "the table below has the same",
  );
  const cells = [h("span", { class: "corner" }, size === "large" ? "unit \\ client" : "")];
  for (const part of parts) {
    cells.push(
      h("span", { class: "client", title: `${part.name}: ${partStates[part.state]}` }, size === "large" ? part.name : ""),
    );
  }
  let block = null;
  units.forEach((unit, number) => {
    const first = blockOf(unit) !== block;
    block = blockOf(unit);
    cells.push(h("span", { class: `unit${first ? " first" : ""}`, title: unit.name }, shorten(unit.name)));
    for (const part of parts) {
      const state = part.units.includes(number) ? stateOf(part) : "free";
      const title = state === "free" ? null : `${unit.name}: ${part.name}, ${STATES[state]}`;
      cells.push(h("span", { class: `cell ${state}${first ? " first" : ""}`, title }));
    }
  });
  picture.replaceChildren(...cells);
}

const inBlock = (name) => name.match(/(?:^|\.)(\d+)\.(.*)$/);

const blockOf = (unit) => inBlock(unit.name)?.[1] ?? unit.segment;

/** A module's path, without what all paths have in common. */
function shorten(name) {
  const found = inBlock(name);
  if (!found) return name;
  const parts = found[2].split(".").filter((part) => !["attention", "self", "self_attn", "attn"].includes(part));
  return `block ${found[1]} ${parts.join(".")}`;
}

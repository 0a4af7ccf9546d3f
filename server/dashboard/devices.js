// The devices: who is here, and how each does.

import { $, fill, h, text } from "./dom.js";
import { ago, bytes, count, digits } from "./format.js";
import { linkTo } from "./pages.js";

const ORDER = ["training", "waiting", "away", "revoked"];
const SHOWN = 20; // of those at work first; all have a page of their own

const profile = (device) => device.profile ?? {};

const COLUMNS = [
  ["device", (device) => h("a", { href: linkTo("device", device.id), title: device.id }, device.name)],
  ["state", (device) => h("span", { class: `badge ${device.state}` }, device.state)],
  ["job", (device) => device.job ?? "", "named"],
  ["last seen", (device) => ago(device.last_seen)],
  ["runtimes", (device) => (profile(device).runtimes ?? []).join(", ")],
  ["may take", (device) => bytes(profile(device).memory_bytes), "number"],
  ["took at most", (device) => bytes(profile(device).resident_bytes), "number"],
  ["s / step", (device) => digits(profile(device).step_seconds), "number"],
  ["up", (device) => bytes(device.up), "number"],
  ["down", (device) => bytes(device.down), "number"],
  ["note", (device) => device.note, "wrap"],
];

const narrow = matchMedia("(max-width: 36rem)");

/** On a phone the devices come before the history, for eyes, fingers and readers alike. */
function place() {
  const card = $("devices-card");
  const before = narrow.matches && !$("job").hidden ? $("charts") : null;
  const parent = before?.parentElement ?? $("job-page");
  if (card.parentElement !== parent) parent.insertBefore(card, before);
}

export function startDevices(redraw) {
  narrow.addEventListener("change", redraw);
  text($("address"), location.origin);
}

export function showDevices(devices) {
  place();
  const found = [...devices.values()].sort(
    (a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.name.localeCompare(b.name, "en", { numeric: true }),
  );
  const rows = found.slice(0, SHOWN);
  $("devices-scroll").hidden = $("devices-text").hidden = !found.length;
  $("no-device").hidden = found.length > 0;
  $("all-devices").hidden = rows.length === found.length;
  text($("all-devices"), `All ${count(found.length)} devices`);
  const counts = ORDER.map((state) => [state, found.filter((device) => device.state === state).length]);
  text(
    $("devices-text"),
    counts
      .filter(([, number]) => number)
      .map(([state, number]) => `${count(number)} ${state}`)
      .join(", "),
  );
  if (found.length) fill($("devices"), COLUMNS, rows, (device) => device.id);
}

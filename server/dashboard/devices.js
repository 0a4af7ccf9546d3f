// The devices: who is here, and how each does.

import { $, fill, h, text } from "./dom.js";
import { ago, bytes, count, digits } from "./format.js";
import { linkTo } from "./pages.js";

const ORDER = ["training", "waiting", "away", "revoked"];

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

/** `states` counts all devices; of those that the server names first there are rows, in its order. */
export function showDevices({ devices, states, first }) {
  place();
  const rows = first.map((id) => devices.get(id)).filter(Boolean);
  const counts = ORDER.map((state) => [state, states[state] ?? 0]);
  const total = counts.reduce((sum, [, number]) => sum + number, 0);
  $("devices-scroll").hidden = $("devices-text").hidden = !total;
  $("no-device").hidden = total > 0;
  $("all-devices").hidden = rows.length === total;
  text($("all-devices"), `All ${count(total)} devices`);
  text(
    $("devices-text"),
    counts
      .filter(([, number]) => number)
      .map(([state, number]) => `${count(number)} ${state}`)
      .join(", "),
  );
  if (total) fill($("devices"), COLUMNS, rows, (device) => device.id);
}

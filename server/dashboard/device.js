// One device: how it does, what it did, what became of that, and what people wrote about it.

import { call } from "./api.js";
import { ask } from "./ask.js";
import { $, complain, fill, h, keyed, sentence, text, tiles } from "./dom.js";
import { ago, bytes, count, digits, duration, partStates, plural } from "./format.js";
import { linkTo } from "./pages.js";
import { may } from "./people.js";

const EVERY = 2000; // milliseconds between two looks

let shown = null; // its id
let waiting = null;

const path = (what = "") => `v1/devices/${encodeURIComponent(shown)}${what}`;

const PARTS = [
  ["job", (part) => h("a", { href: linkTo("job", part.job) }, part.job), "named"],
  ["round", (part) => count(part.round), "number"],
  ["became", (part) => partStates[part.state]],
  ["when", (part) => ago(part.created)],
  ["trained", (part) => duration(part.seconds), "number"],
  ["memory on top", (part) => (part.peak_bytes ? bytes(part.peak_bytes) : ""), "number"],
  ["examples", (part) => (part.examples == null ? "" : count(part.examples)), "number"],
  ["loss", (part) => digits(part.loss), "number"],
  ["step", (part) => part.step],
  ["reason", (part) => part.reason, "wrap"],
];

const REFUSALS = [
  ["when", (one) => ago(one.time)],
  ["job", (one) => one.job, "named"],
  ["round", (one) => (one.round == null ? "" : count(one.round)), "number"],
  ["code", (one) => one.code],
  ["reason", (one) => one.detail, "wrap"],
];

/** Show a device's page; `error` of one that is not there. */
export function openDevice(id) {
  if (id !== shown) {
    for (const name of ["device-error", "note-error"]) complain($(name));
    $("device-body").hidden = true;
    text($("device-name"), id);
    text($("device-about"), "");
    $("device-state").hidden = true;
    $("revoke-device").hidden = true;
  }
  shown = id;
  load();
}

export function closeDevice() {
  shown = null;
  clearTimeout(waiting);
}

async function load() {
  clearTimeout(waiting);
  if (shown === null) return;
  waiting = setTimeout(load, EVERY);
  if (document.hidden) return;
  const id = shown;
  try {
    const device = await call("GET", path("?limit=50"));
    if (id === shown) show(device);
  } catch (error) {
    complain($("device-error"), error.message);
  }
}

function show(device) {
  complain($("device-error"));
  $("device-body").hidden = $("device-state").hidden = false;
  text($("device-name"), device.name);
  text($("device-state"), device.state);
  $("device-state").className = `badge ${device.state}`;
  $("revoke-device").hidden = device.revoked || !may("administrator");
  text($("device-about"), about(device));
  $("waits-card").hidden = !device.waits.length;
  keyed($("waits"), device.waits, (line) => line, () => h("li"), (item, line) => text(item, sentence(line)));
  tiles($("device-tiles"), numbers(device));
  showNote(device);
  $("device-parts-scroll").hidden = !device.parts.length;
  text($("device-parts-text"), partsText(device));
  fill($("device-parts"), PARTS, device.parts, (part) => `${part.job} ${part.round} ${part.created}`);
  $("device-refusals-scroll").hidden = !device.refusals.length;
  text($("device-refusals-text"), device.refusals.length ? "" : "Nothing was refused or given back.");
  fill($("device-refusals"), REFUSALS, device.refusals, (one) => `${one.time} ${one.code}`);
}

function about(device) {
  const profile = device.profile ?? {};
  const token = device.token_label ? `the token “${device.token_label}”` : `the token ${device.token}`;
  const power = { mains: "on mains power", battery: "on battery" }[profile.power];
  return [
    `${device.id}; enrolled ${ago(device.created)} with ${token}; last seen ${ago(device.last_seen)}.`,
    device.job ? `It works on ${device.job}.` : "",
    profile.runtimes ? `It has ${[profile.runtimes.join(", "), plural(profile.examples ?? 0, "example"), power].filter(Boolean).join(", ")}.` : "",
    device.signs ? "It signs what it sends by a key of its own." : "It proves itself by a secret.",
  ]
    .filter(Boolean)
    .join(" ");
}

function numbers(device) {
  const { counts, profile } = device;
  const found = [
    ["Parts accepted", count(counts.accepted ?? 0), ""],
    ["Given back or refused", count((counts.failed ?? 0) + (counts.refused ?? 0)), ""],
    ["Too late", count(counts.expired ?? 0), ""],
    ["Not needed", count(counts.spare ?? 0), "the round had enough updates"],
    ["Sent", bytes(device.up), `${bytes(device.down)} fetched`],
  ];
  if (profile?.step_seconds) found.push(["A step takes", duration(profile.step_seconds), "in its last round"]);
  if (profile?.resident_bytes) {
    const most = profile.memory_bytes ? `training may take ${bytes(profile.memory_bytes)}` : "";
    found.push(["Memory at most", bytes(profile.resident_bytes), most]);
  }
  return found;
}

function partsText(device) {
  const all = Object.values(device.counts).reduce((sum, number) => sum + number, 0);
  if (!all) return "It has had no part in a round yet.";
  return all > device.parts.length ? `The newest ${count(device.parts.length)} of ${count(all)}.` : "";
}

// --- what people do ---

function showNote(device) {
  const field = $("note");
  text($("note-text"), device.note || "No note.");
  $("note-text").hidden = may("operator");
  $("note-form").hidden = !may("operator");
  if (document.activeElement !== field && field.value === (field.dataset.kept ?? "")) field.value = device.note;
  field.dataset.kept = device.note;
}

export function startDevice(say) {
  $("note-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    complain($("note-error"));
    try {
      const note = $("note").value.trim();
      await call("PUT", path("/note"), { note });
      $("note").value = $("note").dataset.kept = note;
      say("The note is kept.");
      load();
    } catch (error) {
      complain($("note-error"), error.message);
    }
  });
  $("revoke-device").addEventListener("click", async () => {
    const name = $("device-name").textContent;
    const sure = await ask({
      title: `Revoke ${name}?`,
      about: "Nothing more is taken from it, and it is given nothing. To come back it has to enrol again.",
      no: "Keep it",
      yes: "Revoke it",
    });
    if (!sure) return;
    try {
      await call("DELETE", path());
      say(`${name} is revoked.`);
      load();
    } catch (error) {
      complain($("device-error"), error.message);
    }
  });
}

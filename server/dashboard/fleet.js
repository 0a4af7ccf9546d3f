// All devices: searched, filtered, sorted and paged by the server, and what people do to many at once.

import { call } from "./api.js";
import { ask } from "./ask.js";
import { $, complain, fill, h, keyed, text } from "./dom.js";
import { ago, bytes, count, digits, plural } from "./format.js";
import { inHash, linkTo } from "./pages.js";
import { may } from "./people.js";

const EVERY = 3000; // milliseconds between two looks
const PAUSE = 250; // milliseconds without a key, after which somebody has typed
const PAGE = 50;
const STATES = ["training", "waiting", "away", "revoked"];
const FALLING = new Set(["last_seen", "failed", "created"]); // what is newest comes first

let shown = null; // what is asked for, while the page is shown
let waiting = null;
let rows = [];
const chosen = new Set();

const profile = (device) => device.profile ?? {};

const failure = ({ code, detail, time }) =>
  h("details", { class: "why" }, h("summary", {}, code), h("p", {}, `${ago(time)}: ${detail}`));

const chooser = (device) =>
  h("input", { type: "checkbox", "data-choose": device.id, "aria-label": `Choose ${device.name}` });

/** Title, cell, class, and by what the server sorts. */
const COLUMNS = [
  ["device", (device) => h("a", { href: linkTo("device", device.id), title: device.id }, device.name), "", "name"],
  ["", (device) => (may("operator") ? chooser(device) : ""), "choose"],
  ["state", (device) => h("span", { class: `badge ${device.state}` }, device.state), "", "state"],
  ["last error", (device) => (device.failed ? failure(device.failed) : ""), "", "failed"],
  ["group", (device) => device.group || device.token, "named", "group"],
  ["version", (device) => device.version, "", "version"],
  ["last seen", (device) => ago(device.last_seen), "", "last_seen"],
  ["job", (device) => device.job ?? ""],
  ["runtimes", (device) => (profile(device).runtimes ?? []).join(", ")],
  ["may take", (device) => bytes(profile(device).memory_bytes), "number"],
  ["s / step", (device) => digits(profile(device).step_seconds), "number"],
  ["note", (device) => device.note, "wrap"],
];

/** The address says what is looked for, so that a link and a reload find the same. */
export function openFleet() {
  const hash = inHash();
  shown = {
    search: hash.get("search") ?? "",
    state: hash.get("state") ?? "",
    group: hash.get("group") ?? "",
    failed: hash.get("failed") === "yes",
    order: hash.get("order") ?? "state",
    descending: hash.get("down") === "yes",
    offset: Number(hash.get("from")) || 0,
  };
  const fields = $("fleet-form").elements;
  fields.search.value = shown.search;
  fields.state.value = shown.state;
  fields.failed.checked = shown.failed;
  load();
}

export function closeFleet() {
  shown = null;
  clearTimeout(waiting);
  chosen.clear();
}

/** Look for something else. */
function look(changes) {
  Object.assign(shown, { offset: 0 }, changes);
  chosen.clear();
  const told = {
    devices: "", search: shown.search, state: shown.state, group: shown.group, failed: shown.failed ? "yes" : "",
    order: shown.order === "state" ? "" : shown.order, down: shown.descending ? "yes" : "", from: shown.offset || "",
  };
  const hash = new URLSearchParams(Object.entries(told).filter(([name, value]) => name === "devices" || value !== ""));
  history.replaceState(null, "", `#${hash}`);
  load();
}

async function load() {
  clearTimeout(waiting);
  if (shown === null) return;
  waiting = setTimeout(load, EVERY);
  if (document.hidden) return;
  const of = { ...shown };
  const query = new URLSearchParams({ order: of.order, descending: of.descending, offset: of.offset, limit: PAGE });
  if (of.search) query.set("search", of.search);
  if (of.state) query.set("state", of.state);
  if (of.group) query.set("group", of.group);
  if (of.failed) query.set("failed", "true");
  try {
    const found = await call("GET", `v1/fleet?${query}`);
    if (JSON.stringify(of) !== JSON.stringify(shown)) return; // somebody looks for something else by now
    complain($("fleet-error"));
    show(found);
  } catch (error) {
    complain($("fleet-error"), error.message);
  }
}

function show({ total, states, groups, devices }) {
  if (!devices.length && total && shown.offset) {
    look({ offset: 0 }); // those of this page are gone
    return;
  }
  rows = devices;
  const all = ["", ...groups.map(({ token }) => token)];
  const titles = new Map(groups.map(({ token, label, count: many }) => [token, `${label || token} (${count(many)})`]));
  const select = $("fleet-form").elements.group;
  keyed(select, all, (token) => token, (token) => h("option", { value: token }), (option, token) => text(option, titles.get(token) ?? "all"));
  select.value = all.includes(shown.group) ? shown.group : "";
  const told = STATES.filter((state) => states[state]).map((state) => `${count(states[state])} ${state}`);
  const last = shown.offset + devices.length;
  text($("fleet-text"), total ? `${count(shown.offset + 1)} to ${count(last)} of ${plural(total, "device")}` : "No device fits.");
  text($("fleet-states"), told.join(", "));
  $("fleet-scroll").hidden = !total;
  fill($("found"), COLUMNS, devices, (device) => device.id);
  showOrder();
  $("fleet-before").disabled = !shown.offset;
  $("fleet-after").disabled = last >= total;
  $("fleet-pages").hidden = total <= PAGE;
  showChosen();
}

/** Titles that sort are buttons, made once; a reader is told which one does. */
function showOrder() {
  COLUMNS.forEach(([title, , , order], number) => {
    const head = $("found").tHead.rows[0].cells[number];
    if (!order) return;
    if (!head.firstElementChild) head.replaceChildren(h("button", { type: "button", class: "sort", "data-order": order }, title));
    if (order !== shown.order) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", shown.descending ? "descending" : "ascending");
  });
}

function showChosen() {
  for (const box of $("found").querySelectorAll("[data-choose]")) box.checked = chosen.has(box.dataset.choose);
  $("choose-all").checked = rows.length > 0 && rows.every(({ id }) => chosen.has(id));
  text($("chosen-text"), chosen.size ? `${plural(chosen.size, "device")} chosen` : "");
  for (const name of ["note-chosen", "revoke-chosen", "chosen-note"]) $(name).disabled = !chosen.size;
}

// --- what people do ---

export function startFleet(say) {
  const form = $("fleet-form");
  const fields = form.elements;
  let typing = null;
  fields.search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => look({ search: fields.search.value.trim() }), PAUSE);
  });
  for (const name of ["state", "group"]) fields[name].addEventListener("change", () => look({ [name]: fields[name].value }));
  fields.failed.addEventListener("change", () => look({ failed: fields.failed.checked }));
  form.addEventListener("submit", (event) => event.preventDefault());
  $("fleet-before").addEventListener("click", () => look({ offset: Math.max(0, shown.offset - PAGE) }));
  $("fleet-after").addEventListener("click", () => look({ offset: shown.offset + PAGE }));
  $("found").addEventListener("click", ({ target }) => {
    const { order } = target.dataset;
    if (order) look({ order, descending: order === shown.order ? !shown.descending : FALLING.has(order) });
  });
  $("found").addEventListener("change", ({ target }) => {
    if (target.checked) chosen.add(target.dataset.choose);
    else chosen.delete(target.dataset.choose);
    showChosen();
  });
  $("choose-all").addEventListener("change", ({ target }) => {
    chosen.clear();
    if (target.checked) for (const { id } of rows) chosen.add(id);
    showChosen();
  });
  $("chosen-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const note = $("chosen-note").value.trim();
    forAll((id) => call("PUT", `v1/devices/${encodeURIComponent(id)}/note`, { note }), "have the note", say);
  });
  $("revoke-chosen").addEventListener("click", async () => {
    const sure = await ask({
      title: `Revoke ${plural(chosen.size, "device")}?`,
      about: "Nothing more is taken from them, and they are given nothing. To come back each has to enrol again.",
      no: "Keep them",
      yes: "Revoke them",
    });
    if (sure) forAll((id) => call("DELETE", `v1/devices/${encodeURIComponent(id)}`), "are revoked", say);
  });
}

/** One after the other; what was done stays done where one is refused, and the others stay chosen. */
async function forAll(act, became, say) {
  let done = 0;
  try {
    for (const id of [...chosen]) {
      await act(id);
      chosen.delete(id);
      done += 1;
    }
    complain($("fleet-error"));
  } catch (error) {
    complain($("fleet-error"), error.message);
  }
  say(`${plural(done, "device")} ${became}.`);
  load();
}

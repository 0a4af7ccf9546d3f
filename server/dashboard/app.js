// The page: who is signed in, which job is shown, and what the server says of it.

import { Stream, token } from "./api.js";
import { showAssignment } from "./assignment.js";
import { Charts } from "./charts.js";
import { showLearned, startDownload } from "./download.js";
import { closeCompare, openCompare, refreshCompare, startCompare } from "./compare.js";
import { closeDevice, openDevice, startDevice } from "./device.js";
import { showDevices, startDevices } from "./devices.js";
import { $, complain, text } from "./dom.js";
import { closeFleet, openFleet, startFleet } from "./fleet.js";
import { startForm } from "./form.js";
import { count, percent, setClock } from "./format.js";
import { accuracyOf, countDown, newestFirst, showJob, showList, startActions } from "./jobs.js";
import { refreshLog, showAdvice } from "./log.js";
import { page, turnTo } from "./pages.js";
import { showRefusals } from "./refusals.js";
import { expired, signIn, startSession, takeToken } from "./session.js";
import { showSettings } from "./settings.js";
import { closeTokens, openTokens, startTokens } from "./tokens.js";

const CONNECTION = {
  connecting: "connecting…",
  live: "live",
  lost: "connection lost, trying again",
};

const TITLES = { device: "A device", devices: "Devices", tokens: "Enrol devices", compare: "Compare jobs" };

const fleet = { jobs: new Map(), devices: new Map(), states: {}, first: [] };
let details = empty();
let chosen = null;
let stream = null;
let charts = null;
let wanted = new Set(); // parts of the page to draw anew

function empty() {
  return { rounds: new Map(), metrics: new Map(), traffic: new Map(), refusals: new Map(), assignment: null, advice: [] };
}

const job = () => fleet.jobs.get(chosen);

function say(message) {
  text($("announcer"), message);
}

// --- what the server says ---

const TAKE = {
  jobs: (rows) => {
    rows.forEach(takeJob);
    refreshCompare();
  },
  devices: (rows) => {
    rows.forEach((row) => fleet.devices.set(row.id, row));
  },
  fleet: ({ states, first }) => {
    Object.assign(fleet, { states, first });
    fleet.devices.forEach((_, id) => first.includes(id) || fleet.devices.delete(id));
  },
  rounds: (rows) => rows.forEach((row) => details.rounds.set(row.number, row)),
  metrics: (rows) =>
    rows.forEach(({ name, round, value }) => {
      if (!details.metrics.has(name)) details.metrics.set(name, new Map());
      details.metrics.get(name).set(round, value);
    }),
  traffic: (rows) => rows.forEach((row) => details.traffic.set(row.round, row)),
  refusals: (rows) => rows.forEach((row) => details.refusals.set(row.id, row)),
  assignment: (value) => {
    details.assignment = value;
  },
  advice: (lines) => {
    details.advice = lines;
  },
};

function take(name, value) {
  TAKE[name]?.(value);
  draw(name);
}

function takeJob(row) {
  const before = fleet.jobs.get(row.id);
  fleet.jobs.set(row.id, row);
  if (row.id === chosen && before && before.state !== row.state) {
    say(`Job ${row.name} is ${row.state}${row.reason ? `: ${row.reason}` : ""}.`);
  }
}

function connect() {
  stream?.close();
  details = empty();
  const query = chosen === null ? "" : `?job=${encodeURIComponent(chosen)}`;
  stream = new Stream(`v1/events${query}`, {
    event: take,
    clock: setClock,
    state: connection,
    refused: (error) => (error.status === 404 ? choose(null) : expired(error)),
  });
}

function connection(state) {
  const element = $("connection");
  const before = element.dataset.state;
  element.hidden = false;
  element.dataset.state = state;
  text(element, CONNECTION[state]);
  if (state === "lost" && before === "live") say("Connection lost, trying again.");
  if (state === "live" && before === "lost") say("Connected again.");
}

// --- which job is shown ---

function choose(id) {
  chosen = fleet.jobs.has(id) ? id : (newestFirst(fleet.jobs)[0]?.id ?? null);
  draw("all");
  connect();
}

/** The page that the address names; beside other pages the job stays chosen. */
function turn() {
  const { name, of } = page();
  turnTo(name);
  if (name === "device") openDevice(of);
  else closeDevice();
  if (name === "devices") openFleet();
  else closeFleet();
  if (name === "compare") openCompare(fleet.jobs);
  else closeCompare();
  if (name === "tokens") openTokens();
  else closeTokens();
  const lost = name === "job" && of !== null && named(of) === null;
  complain($("lost-link"), lost ? `The server has no job ${of}: it was deleted, or the link is another server's.` : null);
  if (name === "job" || stream === null) choose(name === "job" ? named(of) : chosen);
  if (name !== "job") document.title = `${TITLES[name]} · SPRY`;
}

// --- drawing, at most once in a frame ---

function draw(...names) {
  if (!wanted.size) requestAnimationFrame(drawn);
  names.forEach((name) => wanted.add(name));
}

function drawn() {
  const all = wanted.has("all");
  const any = (...names) => all || names.some((name) => wanted.has(name));
  const shown = job();
  const parts = {
    list: any("jobs"),
    job: any("jobs", "rounds", "metrics"),
    charts: any("metrics", "traffic", "rounds"),
    assignment: any("assignment"),
    advice: any("advice"),
    log: any("jobs", "rounds", "refusals"),
    refusals: any("refusals", "jobs"),
    devices: any("devices", "fleet", "clock"),
  };
  wanted = new Set();
  if (chosen === null && fleet.jobs.size) {
    choose(null);
    return;
  }
  $("no-job").hidden = fleet.jobs.size > 0;
  $("job").hidden = !shown;
  $("compare-link").hidden = fleet.jobs.size < 2;
  if (parts.list) showList(fleet.jobs, chosen);
  if (parts.devices) showDevices(fleet);
  if (!shown) return;
  const accuracy = accuracyOf(shown);
  const told = accuracy == null ? "" : `, ${percent(accuracy)}`;
  if (page().name === "job") document.title = `${shown.name}: ${count(shown.done)} of ${count(shown.settings.rounds)}${told} · SPRY`;
  if (parts.job) showJob(shown, details);
  if (parts.list) showLearned(shown);
  if (parts.charts) {
    charts ??= new Charts($("charts"));
    charts.show(shown, details);
  }
  if (parts.advice) showAdvice(details.advice);
  if (parts.job) showSettings(shown);
  if (parts.log) refreshLog(shown);
  if (parts.assignment) showAssignment(details.assignment);
  if (parts.refusals) showRefusals(shown, details.refusals);
}

// --- coming and going ---

const named = (job) => [...fleet.jobs.values()].find(({ id, name }) => id === job || name === job)?.id ?? null;

function enter(jobs) {
  jobs.forEach((row) => fleet.jobs.set(row.id, row));
  turn();
}

function leave() {
  stream?.close();
  stream = null;
  for (const close of [closeDevice, closeFleet, closeCompare, closeTokens]) close();
  fleet.jobs.clear();
  fleet.devices.clear();
  Object.assign(fleet, { states: {}, first: [] });
  chosen = null;
}

function start() {
  const changed = (row) => take("jobs", [row]);
  startActions({ chosen: job, changed, say });
  startForm({ changed, say, states: () => fleet.states });
  startDownload({ chosen: job, say });
  $("log-details").addEventListener("toggle", () => job() && refreshLog(job()));
  startDevices(() => draw("devices"));
  startDevice(say);
  startFleet(say);
  startTokens(say);
  startCompare();
  addEventListener("hashchange", () => {
    if (takeToken()) signIn();
    else if (token.get()) turn();
  });
  setInterval(() => {
    countDown(job());
    draw("clock");
  }, 1000);
  startSession({ enter, leave });
}

start();

// Jobs: the list, the one that is shown, and how an administrator steers it.

import { call } from "./api.js";
import { ask } from "./ask.js";
import { $, complain, h, keyed, text, tiles } from "./dom.js";
import { ago, bytes, count, digits, duration, now, percent, plural } from "./format.js";
import { may } from "./people.js";

const SLOTS = 40; // places that are drawn apart

/** How good the model is, by the score that is compared: a share. */
export const accuracyOf = (job) => job.metrics[job.score] ?? job.metrics[`${job.score}_global`];

const TITLES = { accuracy: "Accuracy", f1: "F1" };

const path = (job, what) => `v1/jobs/${encodeURIComponent(job.id)}/${what}`;

// --- the list ---

/** Those that have ended come last. */
export const newestFirst = (jobs) =>
  [...jobs.values()].sort((a, b) => (a.state === "ended") - (b.state === "ended") || b.created - a.created);

export function showList(jobs, chosen) {
  keyed(
    $("job-list"),
    newestFirst(jobs),
    (job) => job.id,
    (job) =>
      h(
        "li",
        {},
        h("a", { href: `#job=${encodeURIComponent(job.id)}` }, h("b"), h("span", { class: "badge" }), h("small")),
      ),
    (item, job) => {
      const [name, state, about] = item.firstElementChild.children;
      text(name, job.name);
      badge(state, job.state);
      const accuracy = accuracyOf(job);
      const told = accuracy == null ? "" : `, ${percent(accuracy)}`;
      text(about, `${count(job.done)} of ${plural(job.settings.rounds, "round")}${told}`);
      if (job.id === chosen) item.firstElementChild.setAttribute("aria-current", "true");
      else item.firstElementChild.removeAttribute("aria-current");
    },
  );
}

function badge(element, state) {
  element.className = `badge ${state}`;
  text(element, state);
}

// --- the job that is shown ---

export function showJob(job, { metrics, rounds }) {
  text($("job-name"), job.name);
  badge($("job-state"), job.state);
  const { training } = job.settings;
  const ended = job.state === "ended" ? ` Ended ${ago(job.ended)}: ${job.reason}.` : "";
  text(
    $("job-about"),
    `Mode ${training.mode}, estimator ${training.estimator}, ${plural(job.settings.per_round, "client")} ` +
      `in a round; made ${ago(job.created)}.${ended}`,
  );
  $("pause").hidden = job.state !== "running" || !may("operator");
  $("resume").hidden = (job.state !== "paused" && job.state !== "set-aside") || !may("operator");
  $("stop").hidden = job.state === "ended" || !may("administrator");
  tiles($("tiles"), numbers(job, metrics));
  showRound(job, rounds);
}

function numbers(job, metrics) {
  const change = (name) => {
    const values = [...(metrics.get(name)?.values() ?? [])];
    return values.length > 1 ? values.at(-1) - values[0] : null;
  };
  const points = (value) => (value == null ? "" : `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(1)} points`);
  const newest = (score) => (score in job.metrics ? score : `${score}_global`);
  const name = newest(job.score);
  const personal = `${job.score}_personal`;
  const perplexity = newest("perplexity");
  const refused = Object.values(job.refused).reduce((sum, number) => sum + number, 0);
  const loss = change("loss");
  const found = [["Rounds", count(job.done), `of ${count(job.settings.rounds)}`]];
  const title = TITLES[job.score] ?? job.score;
  if (name in job.metrics) found.push([title, percent(job.metrics[name]), points(change(name))]);
  if (personal in job.metrics) {
    const told = title === "Accuracy" ? "Personal accuracy" : `Personal ${title}`;
    found.push([told, percent(job.metrics[personal]), points(change(personal))]);
  }
  if (perplexity in job.metrics) found.push(["Perplexity", digits(job.metrics[perplexity]), ""]);
  if ("loss" in job.metrics)
    found.push([
      "Loss",
      digits(job.metrics.loss),
      loss == null ? "" : `${loss < 0 ? "−" : "+"}${digits(Math.abs(loss))}`,
    ]);
  if (job.privacy) {
    const { epsilon, planned, delta, times } = job.privacy;
    found.push(["Epsilon", digits(epsilon), `${digits(planned)} after ${plural(times, "round")}; delta ${delta}`]);
  }
  if (job.ends_about != null) {
    const left = Math.max(0, job.ends_about - now());
    found.push(["Time left", left < 1 ? "soon" : `about ${duration(left).replace(" ", "\u00a0")}`, "if rounds go on as the last ones did"]);
  }
  const round = job.progress;
  const here = (round?.training ?? 0) + (job.settings.training.mode === "epoch" ? (round?.reported ?? 0) : 0);
  found.push(["Devices", count(job.devices), here ? `took part; ${count(here)} in this round` : "took part"]);
  found.push(["The server sees", job.sees, ""]);
  found.push(["Sent by devices", bytes(job.up), `${bytes(job.down)} fetched`]);
  found.push(["Refused", count(refused), refused === 1 ? "update" : "updates"]);
  return found;
}

function showRound(job, rounds) {
  const round = job.progress;
  const bar = $("round-bar");
  bar.hidden = !round;
  if (!round) {
    text($("round-title"), "Current round");
    text($("round-text"), "No round yet.");
    text($("round-left"), "");
    return;
  }
  const over = round.state === "done" || round.state === "failed";
  const { mode, iterations } = job.settings.training;
  const step =
    mode === "iteration" && !over
      ? `, iteration ${count(round.iteration + 1)} of ${count(Math.max(iterations, 1))}`
      : "";
  text($("round-title"), `${over ? "Last round" : "Round"} ${count(round.number)}${step}`);
  const reported = Math.min(round.reported, round.wanted);
  const training = Math.min(round.training - (mode === "iteration" ? round.reported : 0), round.wanted - reported);
  slots(bar, round.wanted, reported, Math.max(training, 0));
  bar.setAttribute("aria-valuemax", round.wanted);
  bar.setAttribute("aria-valuenow", reported);
  const said =
    `${count(round.reported)} of ${count(round.wanted)} reported` +
    (step ? " in this iteration" : `, ${count(round.training)} training`);
  bar.setAttribute("aria-valuetext", said);
  const told = roundText(job, round, said, rounds);
  text($("round-text"), told);
  countDown(job);
}

function roundText(job, round, said, rounds) {
  const row = rounds.get(round.number);
  if (round.state === "failed") return `It failed: ${row?.result?.reason ?? "too few reports"}.`;
  if (round.state === "done") return `Done with ${plural(row?.result?.reports ?? round.reported, "report")}.`;
  if (job.state === "set-aside") return `${said}. The job is set aside: no device is given a part.`;
  if (round.state === "closing") return `${said}. The server averages and evaluates.`;
  if (job.state === "paused") return `${said}. The job is paused: no device is given a part.`;
  const [last] = [...rounds.values()].filter((one) => one.began).sort((one, other) => other.number - one.number);
  const began = last ? ` Updates of round ${count(last.number)} began: ${last.began}.` : "";
  return round.training + round.reported ? `${said}.${began}` : "It waits for devices; its time runs from the first one on.";
}

/** The time that the round has left, told every second. */
export function countDown(job) {
  const round = job?.progress;
  const open = round?.state === "open" && round.deadline != null && job.state !== "ended";
  text($("round-left"), open ? `${duration(Math.max(0, Math.round(round.deadline - now())))} left` : "");
}

function slots(bar, wanted, reported, training) {
  const places =
    wanted <= SLOTS
      ? Array.from({ length: wanted }, (_, place) => [
          place,
          place < reported ? "done" : place < reported + training ? "open" : "free",
          1,
        ])
      : [
          ["done", "done", reported],
          ["open", "open", training],
          ["free", "free", wanted - reported - training],
        ];
  keyed(
    bar,
    places,
    ([key]) => key,
    () => h("span"),
    (slot, [, state, size]) => {
      slot.className = `slot ${state}`;
      slot.style.flexGrow = size;
    },
  );
}

// --- what an administrator does ---

/** `chosen()` gives the job that is shown; `changed(job)` takes a job's new view; `say(text)` tells screen readers. */
export function startActions({ chosen, changed, say }) {
  const steer = async (what) => {
    complain($("job-error"));
    for (const name of ["pause", "resume", "stop"]) $(name).disabled = true;
    try {
      const job = await call("POST", path(chosen(), what));
      changed(job);
      say(`Job ${job.name} is ${job.state}.`);
    } catch (error) {
      complain($("job-error"), error.message);
    } finally {
      for (const name of ["pause", "resume", "stop"]) $(name).disabled = false;
      [...document.querySelectorAll("#job .actions button:not([hidden])")].at(0)?.focus();
    }
  };
  $("pause").addEventListener("click", () => steer("pause"));
  $("resume").addEventListener("click", () => steer("resume"));
  $("stop").addEventListener("click", async () => {
    const sure = await ask({
      title: `Stop job ${chosen().name}?`,
      about: "Devices are given nothing more of it, and it does not start again. Its weights stay.",
      no: "Keep it",
      yes: "Stop it for good",
    });
    if (sure) steer("stop");
  });
}

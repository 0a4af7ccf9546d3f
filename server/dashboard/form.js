// The form that starts a job.

import { call, upload } from "./api.js";
import { $, complain, h, text } from "./dom.js";
import { bytes, plural } from "./format.js";

const MOST = 10; // clients that are proposed: more make a round longer, and hardly better

/** `changed(job)` takes the new job; `say(text)` tells screen readers; `devices()` gives all that are known. */
export function startForm({ changed, say, devices }) {
  const form = $("job-form");
  const fields = form.elements;
  let bundles = [];
  if (!isSecureContext) {
    fields.held_out.disabled = true; // no browser hashes for a page that travels in the open
    text($("held-out-hint"), "Not over plain HTTP: open this page by HTTPS, or use spry job create --held-out.");
  }
  const chosen = () => bundles.find(({ sha256 }) => sha256 === fields.bundle.value);
  const tell = () => {
    text($("bundle-hint"), bundles.length ? describe(chosen()) : "");
    if (bundles.length) start(fields, chosen().settings.training);
  };
  fields.bundle.addEventListener("change", tell);
  $("new-job").addEventListener("click", async () => {
    complain($("job-form-error"));
    $("job-fields").hidden = $("no-bundle").hidden = $("job-start").disabled = true; // what fits a bundle fills the form
    $("job-dialog").showModal();
    const known = bundles;
    try {
      bundles = await call("GET", "v1/bundles");
    } catch (error) {
      complain($("job-form-error"), error.message);
    }
    proposeClients(fields.per_round, devices());
    $("no-bundle").hidden = bundles.length > 0;
    $("job-fields").hidden = !bundles.length;
    $("job-start").disabled = !bundles.length;
    if (named(bundles) !== named(known)) { // else what was typed before a cancel is still there
      choices(fields.bundle, bundles);
      tell();
    }
    (bundles.length ? fields.name : $("job-cancel")).focus();
  });
  fields.mode.addEventListener("change", () => {
    offer(fields, chosen().in_mode[fields.mode.value].training);
    const iteration = fields.mode.value === "iteration";
    $("iterations-field").hidden = fields.iterations.disabled = !iteration;
    $("evaluation-field").hidden = fields.device_evaluation.disabled = iteration; // scalars say nothing of accuracy
  });
  startNaming(fields, () => bundles);
  for (const name of [...OFFERED, "per_round"]) fields[name].addEventListener("input", () => (fields[name].dataset.typed = "yes"));
  $("job-cancel").addEventListener("click", () => $("job-dialog").close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    complain($("job-form-error"));
    $("job-start").disabled = true;
    try {
      const other = parsed(fields.settings.value); // complains before anything is sent
      const [file] = fields.held_out.files;
      const heldOut = file ? { held_out: await upload("v1/held-out", file) } : {};
      if (!$("job-dialog").open) return; // cancelled meanwhile
      const bundle = chosen();
      const job = await call("POST", "v1/jobs", {
        name: fields.name.value.trim(),
        bundle: bundle.sha256,
        settings: [settingsIn(fields), heldOut, other].reduce((into, given) => merged(into, given), bundle.in_mode[fields.mode.value]),
      });
      $("job-dialog").close();
      form.reset();
      delete fields.per_round.dataset.typed;
      tell();
      changed(job);
      say(`Job ${job.name} is running.`);
      location.hash = `job=${encodeURIComponent(job.id)}`;
    } catch (error) {
      complain($("job-form-error"), error.message);
    } finally {
      $("job-start").disabled = false;
    }
  });
}

/** As many as are here, where nobody has typed. */
function proposeClients(field, devices) {
  const here = devices.filter(({ state }) => state === "training" || state === "waiting").length;
  text($("clients-hint"), here ? `${plural(here, "device is", "devices are")} here.` : "No device is here yet.");
  if (!field.dataset.typed) field.value = Math.min(here, MOST) || field.defaultValue;
}

function choices(select, bundles) {
  const known = select.value;
  const title = ({ name, model, sha256 }) => `${name || model} (${sha256.slice(0, 8)})`;
  select.replaceChildren(...bundles.map((bundle) => h("option", { value: bundle.sha256 }, title(bundle))));
  if (bundles.some(({ sha256 }) => sha256 === known)) select.value = known;
}

/** People give a bundle a name that they know it by. */
function startNaming(fields, bundles) {
  const keep = async () => {
    complain($("job-form-error"));
    const { value: sha256 } = fields.bundle;
    try {
      const name = $("bundle-name").value.trim();
      await call("PATCH", `v1/bundles/${sha256}`, { name });
      bundles().find((one) => one.sha256 === sha256).name = name;
      choices(fields.bundle, bundles());
      $("naming").open = false;
      $("bundle-name").value = "";
    } catch (error) {
      complain($("job-form-error"), error.message);
    }
  };
  $("keep-name").addEventListener("click", keep);
  $("bundle-name").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // it would start the job
    keep();
  });
}

const named = (bundles) => bundles.map(({ sha256 }) => sha256).join();

const describe = (bundle) =>
  `${plural(bundle.labels, "label")} of ${bundle.task}, ${plural(bundle.units, "unit")} of ${bundle.method}, ` +
  `for ${bundle.runtimes.join(", ")}; ${bytes(bundle.bytes)}` +
  (bundle.preset === "default" ? "" : `. Jobs on it start from the preset ${bundle.preset}`);

const OFFERED = ["iterations", "learning_rate"];

/** What fits a bundle's adapter; what was typed for another one is gone. */
function start(fields, training) {
  fields.mode.value = training.mode ?? fields.mode.options[0].value;
  for (const name of OFFERED) delete fields[name].dataset.typed;
  fields.mode.dispatchEvent(new Event("change"));
}

/** What fits the mode too, where nobody has typed. */
function offer(fields, training) {
  for (const name of OFFERED) {
    if (!fields[name].dataset.typed) fields[name].value = training[name] ?? fields[name].defaultValue;
  }
}

/** What is in the fields but for files and JSON. */
function settingsIn(fields) {
  const training = { mode: fields.mode.value, learning_rate: Number(fields.learning_rate.value) };
  if (training.mode === "iteration") training.iterations = Number(fields.iterations.value);
  return {
    rounds: Number(fields.rounds.value),
    per_round: Number(fields.per_round.value),
    device_evaluation: training.mode === "epoch" ? Number(fields.device_evaluation.value) : 0,
    training,
  };
}

function parsed(source) {
  if (!source.trim()) return {};
  let value;
  try {
    value = JSON.parse(source);
  } catch (error) {
    throw new Error(`Other settings are no JSON: ${error.message}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error('Other settings must be a JSON object such as {"deadline": 300}.');
  }
  return value;
}

function merged(into, given) {
  const found = { ...into };
  for (const [key, value] of Object.entries(given)) {
    const inner =
      value !== null && typeof value === "object" && !Array.isArray(value) && typeof found[key] === "object";
    found[key] = inner ? merged(found[key], value) : value;
  }
  return found;
}

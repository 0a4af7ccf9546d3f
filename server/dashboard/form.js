// The form that starts a job.

import { call, upload } from "./api.js";
import { $, complain, h, text } from "./dom.js";
import { clearFields, makeFields, settingsSet, showStart } from "./fields.js";
import { bytes, plural } from "./format.js";
import { chosenPreset, showPresets, totalCost } from "./presets.js";

const MOST = 10; // devices that are proposed: more make a round longer, and hardly better
const ROUNDS = 100; // where neither the preset nor anybody says how many

let bundles = [];

/** `changed(job)` takes the new job; `say(text)` tells screen readers; `states()` counts devices by their states. */
export function startForm({ changed, say, states }) {
  const form = $("job-form");
  const fields = form.elements;
  let described = null; // what the server said of all settings
  if (!isSecureContext) {
    fields.held_out.disabled = true; // no browser hashes for a page that travels in the open
    text($("held-out-hint"), "Not over plain HTTP: open this page by HTTPS, or use spry job create --held-out.");
  }
  const open = async () => {
    complain($("job-form-error"));
    $("job-fields").hidden = $("no-bundle").hidden = $("job-start").disabled = true; // what fits a bundle fills the form
    $("job-dialog").showModal();
    const before = named(bundles);
    try {
      const known = described ?? call("GET", "v1/job-settings");
      bundles = await call("GET", "v1/bundles");
      if (described === null) {
        described = await known;
        makeFields(described, () => follow(fields));
      }
    } catch (error) {
      complain($("job-form-error"), error.message);
    }
    proposeDevices(fields.per_round, states());
    $("no-bundle").hidden = bundles.length > 0;
    $("job-fields").hidden = !bundles.length;
    $("job-start").disabled = !bundles.length;
    if (named(bundles) !== before) { // else what was typed before a cancel is still there
      choices(fields.bundle, bundles);
      showBundle(fields);
    }
    (bundles.length ? fields.name : $("job-cancel")).focus();
  };
  $("new-job").addEventListener("click", open);
  fields.bundle.addEventListener("change", () => showBundle(fields));
  $("presets").addEventListener("change", () => showPreset(fields));
  for (const name of ["per_round", "rounds"]) {
    fields[name].addEventListener("input", () => {
      fields[name].dataset.typed = "yes";
      showCost(fields);
    });
  }
  startNaming(fields);
  $("job-cancel").addEventListener("click", () => $("job-dialog").close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    complain($("job-form-error"));
    $("job-start").disabled = true;
    try {
      const job = await make(fields);
      if (job === null) return;
      $("job-dialog").close();
      reset(form);
      changed(job);
      say(`Job ${job.name} is running.`);
      location.hash = `job=${encodeURIComponent(job.id)}`;
    } catch (error) {
      complain($("job-form-error"), error.message);
    } finally {
      $("job-start").disabled = false;
    }
  });
  // A field that does not fit must be seen, that the browser may say so.
  form.addEventListener("invalid", ({ target }) => target.closest("details")?.setAttribute("open", ""), true);
}

/** Make the job as `spry job create` would; null where somebody cancelled meanwhile. */
async function make(fields) {
  const other = parsed(fields.settings.value); // complains before anything is sent
  const [file] = fields.held_out.files;
  const heldOut = file ? { held_out: await upload("v1/held-out", file) } : {};
  if (!$("job-dialog").open) return null;
  const bundle = chosenBundle(fields);
  const { name: preset, fits } = chosenPreset(bundle, fields);
  const settings = [mainSettings(fields), settingsSet(), heldOut, other].reduce(merged, {});
  const plan = await call("POST", `v1/bundles/${bundle.sha256}/plan`, { preset: fits ? "" : preset, settings });
  return call("POST", "v1/jobs", { name: fields.name.value.trim(), bundle: bundle.sha256, settings: plan.settings });
}

const mainSettings = (fields) => ({
  rounds: Number(fields.rounds.value),
  per_round: Number(fields.per_round.value),
  ...(fields.device_evaluation.disabled ? {} : { device_evaluation: Number(fields.device_evaluation.value) }),
});

const chosenBundle = (fields) => bundles.find(({ sha256 }) => sha256 === fields.bundle.value);

// --- what follows from a choice ---

function showBundle(fields) {
  const bundle = chosenBundle(fields);
  text($("bundle-hint"), bundle ? describe(bundle) : "");
  if (!bundle) return;
  showPresets(bundle);
  showPreset(fields);
}

function showPreset(fields) {
  const { settings } = chosenPreset(chosenBundle(fields), fields);
  if (!fields.rounds.dataset.typed) fields.rounds.value = settings.rounds ?? ROUNDS;
  showStart(settings);
  follow(fields);
  showCost(fields);
}

/** Of a private job nothing beside weights leaves a device. */
function follow(fields) {
  const { privacy_epsilon: epsilon, privacy_noise: noise } = settingsSet();
  fields.device_evaluation.disabled = epsilon !== undefined || noise !== undefined;
}

function showCost(fields) {
  const bundle = chosenBundle(fields);
  text($("cost-hint"), totalCost(chosenPreset(bundle, fields), Number(fields.rounds.value), bundle));
}

function reset(form) {
  form.reset();
  for (const name of ["per_round", "rounds"]) delete form.elements[name].dataset.typed;
  clearFields();
  showBundle(form.elements);
}

/** As many as are here, where nobody has typed. */
function proposeDevices(field, { training = 0, waiting = 0 }) {
  const here = training + waiting;
  text($("clients-hint"), here ? `${plural(here, "device is", "devices are")} here.` : "No device is here yet.");
  if (!field.dataset.typed) field.value = Math.min(here, MOST) || field.defaultValue;
}

// --- bundles ---

function choices(select, known) {
  const before = select.value;
  const title = ({ name, model, sha256 }) => `${name || model} (${sha256.slice(0, 8)})`;
  select.replaceChildren(...known.map((bundle) => h("option", { value: bundle.sha256 }, title(bundle))));
  if (known.some(({ sha256 }) => sha256 === before)) select.value = before;
}

const named = (known) => known.map(({ sha256 }) => sha256).join();

const describe = (bundle) =>
  (bundle.labels ? `${plural(bundle.labels, "label")} of ${bundle.task}` : bundle.task) +
  `, ${plural(bundle.units, "unit")} of ${bundle.method}, for ${bundle.runtimes.join(", ")}; ${bytes(bundle.bytes)}`;

/** People give a bundle a name that they know it by. */
function startNaming(fields) {
  const keep = async () => {
    complain($("job-form-error"));
    const { value: sha256 } = fields.bundle;
    try {
      const name = $("bundle-name").value.trim();
      await call("PATCH", `v1/bundles/${sha256}`, { name });
      bundles.find((one) => one.sha256 === sha256).name = name;
      choices(fields.bundle, bundles);
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

// --- JSON ---

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

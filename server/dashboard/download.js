// What a job has learned, as a file in each format.

import { $, complain, text } from "./dom.js";
import { fetched } from "./api.js";
import { count } from "./format.js";

const BUTTONS = [
  ["download", "peft", "job-error"],
  ["download-peft", "peft", "learned-error"],
  ["download-gguf", "gguf", "learned-error"],
];

/** `chosen()` gives the job that is shown; `say(text)` tells screen readers. */
export function startDownload({ chosen, say }) {
  for (const [id, format, error] of BUTTONS) {
    $(id).addEventListener("click", () => download($(id), chosen(), { format, error: $(error), say }));
  }
}

/** What is there to download; nothing before the first round. */
export function showLearned(job) {
  const nothing = job.version === 0;
  for (const [id, format] of BUTTONS) {
    if (!$(id).dataset.busy) $(id).disabled = nothing;
    $(id).hidden = !job.formats.includes(format);
  }
  text(
    $("learned-text"),
    nothing
      ? "Nothing yet: the first round is not done."
      : `Version ${count(job.version)}, as an adapter beside the model that the bundle was made of.`,
  );
  text($("merge-command"), `spry adapter download ${quoted(job.name)} --format merged --model ${quoted(job.model)} --out merged/`);
}

/** As a shell reads it. */
const quoted = (name) => (/^[\w.:/-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`);

async function download(button, job, { format, error, say }) {
  const label = button.textContent;
  complain(error);
  button.disabled = true;
  button.dataset.busy = "1";
  text(button, "Downloading…");
  try {
    const content = await fetched(`v1/jobs/${encodeURIComponent(job.id)}/adapter?format=${format}`);
    save(content, `${job.name}-${job.version}${format === "peft" ? "" : `-${format}`}.zip`);
    say(`The adapter of ${job.name} is downloaded.`);
  } catch (refused) {
    complain(error, refused.message);
  } finally {
    button.disabled = false;
    delete button.dataset.busy;
    text(button, label);
  }
}

/** A link cannot carry the token, so the page fetches what it hands to the browser. */
function save(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// The adapter, as a file.

import { $, complain, text } from "./dom.js";
import { fetched } from "./api.js";

/** `chosen()` gives the job that is shown; `say(text)` tells screen readers. */
export function startDownload({ chosen, say }) {
  $("download").addEventListener("click", async () => {
    const job = chosen();
    complain($("job-error"));
    $("download").disabled = true;
    text($("download"), "Downloading…");
    try {
      const content = await fetched(`v1/jobs/${encodeURIComponent(job.id)}/adapter`);
      save(content, `${job.name}-${job.version}.zip`);
      say(`The adapter of ${job.name} is downloaded.`);
    } catch (error) {
      complain($("job-error"), error.message);
    } finally {
      $("download").disabled = false;
      text($("download"), "Download adapter");
    }
  });
}

/** A link cannot carry the token, so the page fetches what it hands to the browser. */
function save(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

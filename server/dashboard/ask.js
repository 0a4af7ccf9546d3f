// A question before what cannot be undone.

import { $, text } from "./dom.js";

/** Whether the answer is yes; Escape is no. */
export function ask({ title, about, no, yes }) {
  const dialog = $("ask-dialog");
  text($("ask-title"), title);
  text($("ask-about"), about);
  text($("ask-no"), no);
  text($("ask-yes"), yes);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const answer = (value) => () => dialog.close(value);
    $("ask-no").onclick = answer("");
    $("ask-yes").onclick = answer("yes");
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
  });
}

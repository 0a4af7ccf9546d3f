// Enrolment tokens: made with a QR code, listed, revoked.

import { call } from "./api.js";
import { ask } from "./ask.js";
import { $, complain, fill, h, text } from "./dom.js";
import { count, duration, now, plural } from "./format.js";
import { may } from "./people.js";

const LOOPBACK = /^https?:\/\/(localhost|127\.|\[::1\])/;

let say = () => {};

const COLUMNS = [
  ["token", (token) => token.label || token.id],
  ["used", (token) => `${count(token.uses)} of ${count(token.max_uses)}`, "number"],
  ["state", (token) => h("span", { class: `badge ${CLASSES[stateOf(token)] ?? ""}` }, stateOf(token))],
  ["good for", (token) => (stateOf(token) === "good" ? duration(token.expires - now()) : "")],
  ["at once", (token) => (token.at_once ? count(token.at_once) : "all"), "number"],
  ["id", (token) => token.id],
  ["", (token) => (may("administrator") && !token.revoked ? revoker(token) : "")],
];

const CLASSES = { good: "running", revoked: "revoked" };

function stateOf(token) {
  if (token.revoked) return "revoked";
  if (token.expires <= now()) return "expired";
  return token.uses >= token.max_uses ? "used up" : "good";
}

const revoker = (token) =>
  h("button", { type: "button", class: "small danger", "data-revoke": token.id, "data-label": token.label || token.id }, "Revoke…");

export async function openTokens() {
  complain($("tokens-error"));
  if (!$("token-server").value) $("token-server").value = location.origin;
  warn();
  proposeKey();
  try {
    show(await call("GET", "v1/tokens"));
  } catch (error) {
    complain($("tokens-error"), error.message);
  }
}

/** What was made is forgotten when somebody leaves: a token is shown once. */
export function closeTokens() {
  $("made").hidden = true;
  $("made-qr").removeAttribute("src");
  text($("made-line"), "");
}

function show(tokens) {
  $("tokens-scroll").hidden = !tokens.length;
  text($("tokens-text"), tokens.length ? "" : "No token yet.");
  fill($("tokens"), COLUMNS, tokens.toReversed(), (token) => token.id);
}

/** The publisher's key, where all who signed the bundles here are one and nobody has typed another. */
async function proposeKey() {
  const field = $("token-form").elements.key;
  if (field.value || field.dataset.typed || !may("operator")) return;
  try {
    const [key, ...others] = new Set((await call("GET", "v1/bundles")).flatMap(({ publishers }) => publishers));
    if (key === undefined || others.length || field.dataset.typed) return;
    field.value = key;
    text($("token-key-found"), "It stands here because it signed the bundles on this server.");
  } catch (error) {
    complain($("token-error"), error.message);
  }
}

/** An address that means this very machine to whoever reads it. */
function warn() {
  $("token-warning").hidden = !LOOPBACK.test($("token-server").value);
}

export function startTokens(tell) {
  say = tell;
  const form = $("token-form");
  $("token-server").addEventListener("input", warn);
  form.elements.key.addEventListener("input", ({ target }) => {
    target.dataset.typed = "yes";
    text($("token-key-found"), "");
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    complain($("token-error"));
    try {
      made(await call("POST", "v1/tokens", wanted(form.elements)));
      openTokens();
    } catch (error) {
      complain($("token-error"), error.message);
    }
  });
  $("tokens").addEventListener("click", ({ target }) => {
    if (target.dataset.revoke) revoke(target.dataset.revoke, target.dataset.label);
  });
  $("made-copy").addEventListener("click", copy);
}

function wanted(fields) {
  const found = {
    label: fields.label.value.trim(),
    uses: Number(fields.uses.value),
    seconds: Number(fields.seconds.value),
    server: fields.server.value.trim(),
    key: fields.key.value.trim(),
  };
  return fields.at_once.value ? { ...found, at_once: Number(fields.at_once.value) } : found;
}

function made(token) {
  $("made").hidden = false;
  $("made-qr").src = `data:image/svg+xml,${encodeURIComponent(token.qr)}`;
  text($("made-line"), `spry join '${token.invitation}' --data my.jsonl`);
  text($("made-copy"), "Copy");
  text($("made-about"), `Good for ${plural(token.max_uses, "device")}. It is shown here once.`);
  $("made-title").focus();
  $("made").scrollIntoView({ block: "nearest" });
}

async function copy() {
  try {
    await navigator.clipboard.writeText($("made-line").textContent);
    text($("made-copy"), "Copied");
    say("Copied.");
  } catch {
    getSelection().selectAllChildren($("made-line")); // no clipboard for a page that travels in the open
    say("Selected: press Control and C to copy.");
  }
}

async function revoke(id, label) {
  const sure = await ask({
    title: `Revoke ${label}?`,
    about: "No further device enrols with it. Devices that did stay; each is revoked on its own page.",
    no: "Keep it",
    yes: "Revoke it",
  });
  if (!sure) return;
  try {
    await call("DELETE", `v1/tokens/${encodeURIComponent(id)}`);
    say(`${label} is revoked.`);
    openTokens();
  } catch (error) {
    complain($("tokens-error"), error.message);
  }
}

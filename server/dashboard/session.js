// Signing in and out, and what is said where that does not work.

import { call, token } from "./api.js";
import { $, complain, text } from "./dom.js";
import { inHash } from "./pages.js";
import { meet } from "./people.js";

const AGAIN = 3000; // milliseconds

const UNKNOWN =
  "The server does not know this token. Was it copied whole? The administrator's token is in the server's data folder; " +
  "your own may have been revoked: ask for another.";
const OVER = "You were signed out: the server takes this token no more. It was revoked or changed. Sign in with another.";
const SILENT =
  "The server does not answer. Is it running, and is this device in its network? The page tries again by itself.";

let enter = () => {};
let leave = () => {};
let again = null;

/** `on.enter(jobs)` when somebody is signed in, `on.leave()` when nobody is any more. */
export function startSession(on) {
  ({ enter, leave } = on);
  $("sign-in-form").addEventListener("submit", (event) => {
    event.preventDefault();
    token.set($("token").value.trim());
    $("token").value = "";
    signIn();
  });
  $("sign-out").addEventListener("click", () => signOut());
  takeToken();
  if (token.get()) signIn();
  else signOut();
}

export async function signIn() {
  clearTimeout(again);
  complain($("sign-in-error"));
  if (!/^[\x21-\x7e]+$/.test(token.get())) {
    signOut("The token has characters that no token has. Copy it again.");
    return;
  }
  let jobs;
  try {
    await meet();
    jobs = await call("GET", "v1/jobs");
  } catch (error) {
    if (error.status === 0) wait();
    else signOut(error.status === 401 ? UNKNOWN : error.message);
    return;
  }
  $("sign-in").hidden = true;
  $("fleet").hidden = $("sign-out").hidden = false;
  enter(jobs);
}

/** The token may be right: it is kept, and tried again until the server answers. */
function wait() {
  $("sign-in").hidden = false;
  complain($("sign-in-error"), SILENT);
  again = setTimeout(signIn, AGAIN);
}

/** The server refused what was fine before. */
export const expired = (error) => signOut(error.status === 401 ? OVER : error.message);

export function signOut(why) {
  clearTimeout(again);
  leave();
  token.forget();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  $("fleet").hidden = $("sign-out").hidden = $("connection").hidden = true;
  text($("who"), "");
  $("sign-in").hidden = false;
  document.title = "SPRY";
  complain($("sign-in-error"), why);
  $("token").focus();
}

/** A token in the address is taken and removed: it must not stay in the history. What follows # is sent nowhere. */
export function takeToken() {
  const hash = inHash();
  const given = hash.get("token");
  if (given === null) return false;
  hash.delete("token");
  const rest = hash.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest && `#${rest}`));
  token.set(given);
  return true;
}

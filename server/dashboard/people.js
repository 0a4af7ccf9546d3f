// Who is signed in, and what they may do: what would be refused to them is not offered.

import { call } from "./api.js";
import { $, text } from "./dom.js";

const ROLES = ["viewer", "operator", "administrator"];
const LACKS = {
  viewer:
    "You see everything. To start, pause or resume jobs and to enrol devices takes an operator, to stop and revoke an administrator.",
  operator: "You may do all but stop jobs and revoke tokens and devices: that takes an administrator.",
};

let known = { name: "", role: "viewer" };

/** Whether whoever is signed in has this role or one above it. */
export const may = (role) => ROLES.indexOf(known.role) >= ROLES.indexOf(role);

/** Ask the server who this is; elements with `data-needs` are there for those who have that role. */
export async function meet() {
  known = await call("GET", "v1/me");
  for (const element of document.querySelectorAll("[data-needs]")) element.hidden = !may(element.dataset.needs);
  text($("who"), known.role === "administrator" ? "" : `${known.name}, ${known.role}`);
  text($("may"), LACKS[known.role] ?? "");
  $("may").hidden = !(known.role in LACKS);
}

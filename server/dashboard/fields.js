// A job's settings as named fields in groups, made of what the server says of each.

import { $, h, text } from "./dom.js";

const WORDS = { true: "yes", false: "no" };
const ABOVE = new Set(["rounds", "per_round", "device_evaluation"]); // fields of their own

let groups = [];

const element = (name) => $(`set-${name}`);

const settings = () => groups.flatMap((group) => group.settings).filter(({ name }) => !ABOVE.has(name));

/** `learning rate` of `training.learning_rate`; whose it is where two have the same. */
function titleOf(name) {
  const parts = name.split(".");
  const whose = parts.length > 2 ? `${parts.at(-2)}: ` : "";
  const words = parts.at(-1).replaceAll("_", " ");
  return whose ? whose + words : words[0].toUpperCase() + words.slice(1);
}

const shown = (value) => (value === null || value === undefined ? "" : (WORDS[value] ?? String(value)));

function control(setting) {
  const attributes = { id: `set-${setting.name}`, "aria-describedby": `about-${setting.name}`, title: setting.name };
  if (setting.kind === "boolean" || setting.kind === "choice") {
    const options = setting.kind === "boolean" ? ["true", "false"] : setting.choices;
    return h(
      "select",
      attributes,
      h("option", { value: "" }),
      ...options.map((value) => h("option", { value }, shown(value))),
    );
  }
  if (setting.kind === "text") return h("input", { ...attributes, autocomplete: "off" });
  const step = setting.kind === "integer" ? 1 : "any";
  return h("input", { ...attributes, type: "number", min: setting.least, max: setting.most, step });
}

/** Make the fields, once. */
export function makeFields(known, changed) {
  groups = known;
  $("setting-groups").replaceChildren(
    ...groups.map((group) => {
      const fields = group.settings
        .filter(({ name }) => !ABOVE.has(name))
        .map((setting) =>
          h(
            "div",
            {},
            h("label", { for: `set-${setting.name}` }, titleOf(setting.name)),
            control(setting),
            h("p", { id: `about-${setting.name}`, class: "hint" }, setting.help),
          ),
        );
      const title = h("summary", {}, group.title, h("span", { class: "muted" }));
      return h("details", {}, title, h("div", { class: "fields" }, ...fields));
    }),
  );
  $("setting-groups").addEventListener("input", () => {
    count();
    changed();
  });
}

/** How many of a group are set stands beside its title. */
function count() {
  for (const group of $("setting-groups").children) {
    const set = [...group.querySelectorAll("input, select")].filter(({ value }) => value !== "").length;
    text(group.querySelector("summary span"), set ? ` · ${set} set` : "");
  }
}

/** Show in each empty field what holds where nothing is set: the preset's value, or the setting's own default. */
export function showStart(start) {
  for (const { name, kind, default: own } of settings()) {
    const value = shown(found(start, name) ?? own);
    const field = element(name);
    if (kind === "boolean" || kind === "choice") text(field.options[0], value ? `${value}, as above` : "as above");
    else field.placeholder = value;
  }
}

export function clearFields() {
  for (const { name } of settings()) element(name).value = "";
  count();
}

/** What people have set, as a job's settings. */
export function settingsSet() {
  const given = {};
  for (const { name, kind } of settings()) {
    const { value } = element(name);
    if (value === "") continue;
    if (kind === "boolean") put(given, name, value === "true");
    else put(given, name, kind === "integer" || kind === "number" ? Number(value) : value);
  }
  return given;
}

function found(values, name) {
  return name.split(".").reduce((inner, part) => inner?.[part], values);
}

function put(values, name, value) {
  const parts = name.split(".");
  const last = parts.pop();
  let inner = values;
  for (const part of parts) inner = inner[part] ??= {};
  inner[last] = value;
}

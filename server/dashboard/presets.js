// What a job starts from: a choice of presets, each with what it means and what it costs a device.

import { $, h } from "./dom.js";
import { bytes, digits, plural } from "./format.js";

const cost = ({ passes, sent, memory }) =>
  [
    `${digits(passes)} forward passes a step`,
    `${bytes(sent)} sent a round`,
    memory === null ? "" : `${bytes(memory)} of memory`,
  ]
    .filter(Boolean)
    .join(" · ");

/** The presets of a bundle as radio buttons; the fitting one is chosen. */
export function showPresets(bundle) {
  $("presets").replaceChildren(
    ...bundle.presets.map((preset) => {
      const name = `preset-${preset.name}`;
      const [about, fits] = [`${name}-about`, `${name}-fits`];
      const said = { "aria-labelledby": name, "aria-describedby": preset.fits ? `${fits} ${about}` : about };
      return h(
        "label",
        { class: "option" },
        h("input", { type: "radio", name: "preset", value: preset.name, checked: preset.fits, ...said }),
        h("b", { id: name }, preset.name),
        preset.fits ? h("span", { id: fits, class: "badge running" }, "fits this bundle") : null,
        h("span", { id: about, class: "hint" }, preset.about, h("br"), cost(preset.cost)),
      );
    }),
  );
}

export const chosenPreset = (bundle, fields) => bundle.presets.find(({ name }) => name === fields.preset.value);

/** What a device pays in all, which takes part in each round. */
export function totalCost({ cost: { sent, fetched } }, rounds, bundle) {
  if (!rounds) return "";
  const moved = `${bytes(rounds * sent)} sent and ${bytes(rounds * fetched)} fetched`;
  return `A device that is in all of ${plural(rounds, "round")}: ${moved}, beside the bundle of ${bytes(bundle.bytes)} once.`;
}

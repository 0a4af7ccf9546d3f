// Which page is shown: the address after # says it, so that going back and links work.

import { $ } from "./dom.js";

const PAGES = ["device", "devices", "tokens", "compare"]; // and the job, where it is none of them

export const inHash = () => new URLSearchParams(location.hash.slice(1));

/** The page, and what it is of. */
export function page() {
  const hash = inHash();
  const name = PAGES.find((one) => hash.has(one)) ?? "job";
  return { name, of: hash.get(name) };
}

/** Show one page, and hide the others. */
export function turnTo(name) {
  for (const one of [...PAGES, "job"]) {
    const element = $(`${one}-page`);
    if (element) element.hidden = one !== name;
  }
  for (const link of document.querySelectorAll("[data-page]")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

export const linkTo = (name, of) => `#${name}=${encodeURIComponent(of)}`;

// Elements, without markup in strings: what comes from devices is text, whatever it holds.

export const $ = (id) => document.getElementById(id);

/** An element with attributes and children; `on…` attributes are listeners. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Words that a line of the server's has, with a capital and a full stop. */
export const sentence = (words) => `${words[0].toUpperCase()}${words.slice(1)}.`;

/** Set text only where it differs: screen readers and selections are left alone. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/** Make the children of an element those of a list, and keep the elements of items that stay. */
export function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = name;
    }
    known.delete(name);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const child of known.values()) child.remove();
}

/**
 * Fill a table: columns are [title, cell of a row, class of the cell]; a row's key keeps its element.
 * A cell gives text or an element.
 */
export function fill(table, columns, rows, key) {
  if (!table.tHead) {
    const titles = columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title));
    table.append(h("thead", {}, h("tr", {}, ...titles)), h("tbody"));
  }
  const cells = columns.map(([title, , kind], number) =>
    number ? () => h("td", { class: kind, "data-title": title }) : () => h("th", { scope: "row", class: kind }),
  );
  keyed(
    table.tBodies[0],
    rows,
    key,
    () => h("tr", {}, ...cells.map((make) => make())),
    (line, row) => {
      columns.forEach(([, cell], number) => {
        const value = cell(row);
        if (value instanceof Node) renew(line.cells[number], value);
        else text(line.cells[number], String(value ?? ""));
      });
    },
  );
}

/** Put an element into a cell where it differs; what somebody has unfolded stays so, and has its focus still. */
function renew(cell, value) {
  const before = cell.firstElementChild;
  if (before?.tagName === "DETAILS" && value.tagName === "DETAILS") {
    [...value.children].forEach((child, place) => text(before.children[place], child.textContent));
  } else if (!before?.isEqualNode(value)) cell.replaceChildren(value);
}

/** Show what went wrong, or hide the place for it. */
export function complain(element, message) {
  element.hidden = !message;
  text(element, message ?? "");
}

const WORDS = 9; // characters: what is longer is read as words

/** Numbers in large: [title, value, about it] each. */
export function tiles(list, found) {
  keyed(
    list,
    found,
    ([title]) => title,
    ([title]) => h("div", {}, h("dt", {}, title), h("dd", {}, h("span"), h("small"))),
    (tile, [, value, about]) => {
      text(tile.querySelector("span"), value);
      tile.querySelector("span").className = value.length > WORDS ? "words" : "";
      text(tile.querySelector("small"), about);
    },
  );
}

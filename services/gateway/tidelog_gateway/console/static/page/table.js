/** Figures with their names, and tables that can be read on a phone: there each row is a few lines, with the names of its cells. */

import { h } from "./dom.js";

/**
 * A table with a name. `heads`: `[title]`, or `[title, "number"]` for a column of numbers. `rows`: `[key, cells, below]`,
 * where `below` (or nothing) is drawn over the whole width under the row.
 */
export function table(words, heads, rows) {
  const classOf = (column) => heads[column][1] ?? null;
  const cell = (content, column) => {
    const name = column ? heads[column][0] : null;
    return h("td", { class: classOf(column), "data-name": name || null }, typeof content === "object" ? content : String(content));
  };
  const drawn = rows.flatMap(([key, cells, below]) => [
    h("tr", { key }, cells.map(cell)),
    below ? h("tr", { key: `${key} below`, class: "below" }, h("td", { colspan: heads.length }, below)) : null,
  ]);
  return h(
    "div",
    { key: words, class: "wide stacked listed", tabindex: 0, role: "region", "aria-label": words },
    h("table", {}, h("thead", {}, h("tr", {}, heads.map(([title], column) => h("th", { scope: "col", class: classOf(column) }, title)))), h("tbody", {}, drawn)),
  );
}

/** Figures with their names: `pairs` are `[name, content]`. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, content]) => h("div", {}, h("dt", {}, name), h("dd", {}, typeof content === "object" ? content : String(content)))));
}

/** How many of a list are shown, and a button that shows more; null if all are. `more()` shows them. */
export function fold(shown, all, step, words, more) {
  if (all <= shown) return null;
  return h("p", { class: "acts" }, h("button", { onClick: more }, `Show ${Math.min(step, all - shown)} more`), h("span", { class: "small quiet" }, words));
}

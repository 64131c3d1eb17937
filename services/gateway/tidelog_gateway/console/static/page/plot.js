/** Lines over time, as SVG: no library, no canvas, so that styles and screen readers reach it. */

import { h } from "./dom.js";
import { short } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;
const MINUTES = 3;
const KEPT_MS = MINUTES * 60_000;

/** Values over the last minutes, newest last. `name` is for the legend. */
export class Series {
  points = [];

  constructor(name) {
    this.name = name;
  }

  add(atMs, value) {
    this.points.push([atMs, value]);
    while (this.points[0][0] < atMs - KEPT_MS) this.points.shift();
  }

  /** The newest value; undefined where there is none. */
  get last() {
    return this.points.at(-1)?.[1];
  }
}

/** The smallest of 1, 2, 5, 10, 20, … that is not below `value`. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= value * 0.999999);
}

/** One line for each series, over the last minutes. `words` says what it is; `format` writes a value. */
export function plot(series, { words, format = short }) {
  const now = Math.max(0, ...series.flatMap(({ points }) => points.slice(-1).map(([at]) => at)));
  const top = ceiling(Math.max(0, ...series.flatMap(({ points }) => points.map(([, value]) => value))));
  const x = (at) => WIDTH - ((now - at) * WIDTH) / KEPT_MS;
  const y = (value) => HEIGHT - (value * HEIGHT) / top;
  const told = series.map(({ name, last }) => `${name} ${last === undefined ? "not known" : format(last)}`).join(", ");
  return h(
    "figure",
    { class: "plot", role: "img", "aria-label": `${words}, now: ${told}` },
    h(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      [0.25, 0.5, 0.75].map((part) => h("line", { class: "grid", x1: 0, x2: WIDTH, y1: part * HEIGHT, y2: part * HEIGHT })),
      series.map(({ points }, i) => h("polyline", { class: `line line-${i % 5}`, points: points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ") })),
    ),
    h("span", { class: "top small quiet", "aria-hidden": "true" }, format(top)),
    h("span", { class: "since small quiet", "aria-hidden": "true" }, `${MINUTES} minutes ago`),
  );
}

/** What each line is, and its newest value. */
export function legend(series, format = short) {
  return h(
    "p",
    { class: "legend small" },
    series.map(({ name, last }, i) => h("span", { key: name }, h("span", { class: `swatch line-${i % 5}` }), ` ${name} `, h("b", {}, last === undefined ? "–" : format(last)))),
  );
}

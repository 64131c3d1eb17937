/** Time travel: one step for each event, so that every state that there was can be gone to. */

import { h } from "./dom.js";
import { clock } from "./format.js";
import { levelOf, NOTHING } from "../panels/timeline.js";

/** Events that have a mark of their own. */
const MARKS = 400;

export class TimeBar {
  #app;

  constructor(app) {
    this.#app = app;
  }

  view() {
    const app = this.#app;
    const { events } = app.history;
    if (!events.length) return h("p", { class: "quiet small" }, NOTHING[app.told]);
    const { moment, live } = app;
    const words = this.#words(events[moment - 1]?.record);
    const onInput = ({ target }) => app.show(Number(target.value) >= events.length ? null : Number(target.value));
    return [
      h(
        "div",
        { class: "bar" },
        marks(events, moment),
        h("input", {
          ...{ type: "range", min: 1, max: events.length, step: 1, value: moment, onInput },
          ...{ "aria-label": "Moment", "aria-valuetext": live ? "now" : words },
        }),
      ),
      h("p", { class: "small said" }, live ? h("b", {}, "Now. ") : null, live ? "Drag to see the cluster as it was." : words),
      h("button", { onClick: () => app.show(Math.max(1, moment - 1)), disabled: moment <= 1, "aria-label": "One event back" }, "◀"),
      h("button", { onClick: () => app.show(moment + 1), disabled: live, "aria-label": "One event on" }, "▶"),
      h("button", { onClick: () => app.show(null), disabled: live }, "Now"),
    ];
  }

  #words(record) {
    return record ? `${clock(record.time_ms)} ${record.words ?? record.type}` : "";
  }
}

function marks(events, moment) {
  const each = Math.ceil(events.length / MARKS);
  const shown = events.map(({ record }, i) => [i, levelOf(record)]).filter(([i, level]) => i % each === 0 || level === "bad");
  const width = events.length - 1 || 1;
  return h(
    "svg",
    { viewBox: "0 0 1000 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    shown.map(([i, level]) => h("rect", { x: (1000 * i) / width - 1, y: 0, width: 2, height: 12, class: `${level}${i < moment ? "" : " later"}` })),
  );
}

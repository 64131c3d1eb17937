/** Which partition is shown: a topic by its name, and a number. Nothing is drawn for topics and partitions not chosen. */

import { h } from "../page/dom.js";
import { whole } from "../page/format.js";

/** Names that are offered at a time. */
const OFFERED = 30;

export class PlaceChoice {
  #typed = "";

  /** The fields; choosing goes to the panel of that partition. `topic` is undefined where there is none of that name. */
  view(app, name, partition, topic) {
    const { topics } = app.cluster;
    const go = (to, number) => (location.hash = `#/partition/${encodeURIComponent(to)}/${number}`);
    const onInput = ({ target, inputType }) => {
      this.#typed = target.value;
      const isChosen = inputType === undefined || inputType === "insertReplacementText"; // from the list, not by keys
      if (isChosen && topics.some((one) => one.name === target.value)) go(target.value, 0);
      else app.draw();
    };
    const onChange = ({ target }) => {
      this.#typed = "";
      if (target.value && target.value !== name) go(target.value, 0);
    };
    const offered = topics.filter((one) => one.name.includes(this.#typed)).slice(0, OFFERED);
    const last = (topic?.partitions.length ?? 1) - 1;
    return [
      h("label", { class: "small" }, "Topic ", h("input", { list: "topic-names", value: name ?? "", autocomplete: "off", spellcheck: "false", onInput, onChange })),
      h("datalist", { id: "topic-names" }, offered.map((one) => h("option", { key: one.name, value: one.name }))),
      topic
        ? h(
            "label",
            { class: "small" },
            "Partition ",
            h("input", { type: "number", min: 0, max: last, value: String(partition), onChange: ({ target }) => target.reportValidity() && target.value && go(name, target.value) }),
            ` of ${whole(last + 1)}`,
          )
        : null,
    ];
  }
}

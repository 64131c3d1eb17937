/** The quotas: how much each principal may use at each gateway. */

import { many } from "../cluster/cluster.js";
import { h } from "../page/dom.js";
import { Forms } from "../page/forms.js";
import { whole } from "../page/format.js";
import { BYTES_PER_S, COUNT, inWords, quantityOf } from "../page/quantities.js";
import { fold, table } from "../page/table.js";

const SHOWN = 20;
/** The parts of a quota: `[name, title, unit]`. */
const PARTS = [
  ["bytesInS", "Bytes in/s", BYTES_PER_S],
  ["bytesOutS", "Bytes out/s", BYTES_PER_S],
  ["requestsS", "Requests/s", COUNT],
  ["connections", "Connections", COUNT],
];
const UNBOUNDED = Object.fromEntries(PARTS.map(([name]) => [name, -1]));

export class Quotas {
  #forms = new Forms();
  #shown = SHOWN;
  /** The principal whose quota may be removed. */
  #chosen = null;

  /** Forget what was typed and planned. */
  close() {
    this.#forms.clear();
    this.#chosen = null;
  }

  /** `done(words)` is called when something was changed, and returns its sentence. */
  view(app, { quotas }, isWanted, done) {
    const found = quotas.filter(isWanted);
    const shown = found.slice(0, this.#shown);
    return [
      h("h2", {}, "Quotas"),
      this.#forms.plans("quotas") ? null : this.#forms.proposal(app, "quotas"),
      shown.length
        ? table("Quotas", [["Principal"], ...PARTS.map(([, title]) => [title, "number"]), ["Change"]], shown.map((quota) => this.#row(app, quota, done)))
        : h("p", { class: "quiet" }, quotas.length ? "No principal with that in its name has a quota." : "There are no quotas yet: principals may use as much as there is."),
      fold(shown.length, found.length, SHOWN, `${whole(shown.length)} of ${many(found.length, "quota")}.`, () => ((this.#shown += SHOWN), app.draw())),
      h("div", { key: "doing", class: "doing" }, this.#set(app, quotas, done)),
    ];
  }

  #row(app, quota, done) {
    const { principal } = quota;
    const choose = () => {
      this.#chosen = principal;
      this.#forms.propose(app, "quotas", change(app, quota, { principal, ...UNBOUNDED }, "Remove the quota", done));
    };
    const act = h("button", { "aria-label": `Remove the quota of ${principal}`, onClick: choose }, "Remove");
    const below = this.#chosen === principal && this.#forms.plans("quotas") ? this.#forms.proposal(app, "quotas") : null;
    return [principal, [principal, ...PARTS.map(([name, , unit]) => bound(quota[name], unit)), act], below];
  }

  #set(app, quotas, done) {
    const plan = async ({ principal, ...given }) => {
      const before = quotas.find((quota) => quota.principal === principal) ?? { principal, ...UNBOUNDED };
      const after = { ...before };
      for (const [name, , unit] of PARTS) {
        const text = given[name].trim();
        if (text) after[name] = text === "none" ? -1 : quantityOf(text, unit);
      }
      if (PARTS.every(([name]) => before[name] === after[name])) return "Nothing would change.";
      return change(app, before, after, "Set the quota", done);
    };
    const field = ([name, title, unit]) => h("label", {}, `${title} `, h("input", { name, placeholder: unit === BYTES_PER_S ? "10MiB/s" : "500", autocomplete: "off" }));
    const fields = [
      h("label", {}, "Principal ", h("input", { name: "principal", required: true, autocomplete: "off", spellcheck: "false" })),
      PARTS.map(field),
      h("p", { class: "whole quiet small" }, `A quota holds at each gateway, over all connections of the principal. Bytes are ${BYTES_PER_S.like}; the others ${COUNT.like}. An empty field stays as it is; none lifts the bound. Clients without a token or certificate are the principal anonymous.`),
    ];
    return h("details", { key: "set-quota" }, h("summary", {}, "Set a quota"), this.#forms.planned(app, "set", fields, "Preview", plan));
  }
}

/** The plan that puts a quota in the place of another. */
function change(app, before, after, button, done) {
  const { principal } = after;
  const rows = PARTS.filter(([name]) => before[name] !== after[name]).map(([name, title, unit]) => [name, [title, bound(before[name], unit), bound(after[name], unit)]]);
  const act = async () => {
    await app.log.alterQuotas([after]);
    return done(`Done: the quota of ${principal} is changed.`);
  };
  return { shown: [h("p", {}, `The quota of ${principal}, at each gateway:`), table("Preview of the quota", [["Bound"], ["Now", "number"], ["Then", "number"]], rows)], button, act };
}

function bound(value, unit) {
  return value < 0 ? "none" : inWords(value, unit);
}

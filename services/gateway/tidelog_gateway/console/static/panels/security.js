/** Who may do what: tokens, rules, quotas and the keys of tickets. */

import { h } from "../page/dom.js";
import { unknown } from "../page/failures.js";
import { Forms } from "../page/forms.js";
import { Quotas } from "./quotas.js";
import { Rules } from "./rules.js";
import { Tokens } from "./tokens.js";

const EVERY_MS = 5000;

export class SecurityPanel {
  #access = null;
  #error = null;
  #turn = null;
  #asking = false;
  #due = 0;
  #wanted = "";
  #forms = new Forms();
  #tokens = new Tokens();
  #rules = new Rules();
  #quotas = new Quotas();

  /** Show it until `close`. */
  open(app) {
    this.close();
    this.#access = null;
    this.#error = null;
    this.#turn = setInterval(() => this.#look(app), EVERY_MS);
    this.refresh(app);
  }

  /** Forget everything that was shown, new tokens before all. */
  close() {
    clearInterval(this.#turn);
    this.#forms.clear();
    for (const one of [this.#tokens, this.#rules, this.#quotas]) one.close();
  }

  /** Ask again at once, as something was changed. */
  refresh(app) {
    this.#due = 0;
    this.#look(app);
  }

  async #look(app) {
    if (document.hidden || this.#asking || performance.now() < this.#due || !app.log?.gateway) return;
    this.#asking = true;
    this.#due = performance.now() + EVERY_MS;
    try {
      this.#access = sorted(await app.log.access());
      this.#error = null;
    } catch (error) {
      this.#access = null;
      this.#error = error;
    }
    this.#asking = false;
    app.draw();
  }

  view(app) {
    this.#look(app);
    const find = (event) => {
      this.#wanted = event.target.value;
      app.draw();
    };
    return [
      h("div", { class: "row" }, h("h1", {}, "Security"), this.#access ? h("label", { class: "small" }, "Principal contains ", h("input", { type: "search", onInput: find })) : null),
      app.live ? null : h("p", { class: "quiet" }, "Tokens, rules and quotas are shown as they are now: the timeline does not tell of them."),
      this.#error ? unknown(this.#error) : null,
      this.#access ? this.#sections(app, this.#access) : null,
    ];
  }

  #sections(app, access) {
    const isWanted = ({ principal }) => principal.includes(this.#wanted);
    const done = (words) => {
      this.refresh(app);
      return words;
    };
    return [
      enforced(access),
      h("section", {}, this.#tokens.view(app, access, isWanted, done)),
      h("section", {}, this.#rules.view(app, access, isWanted, done)),
      h("section", {}, this.#quotas.view(app, access, isWanted, done)),
      h("section", {}, this.#ticketKeys(app)),
    ];
  }

  #ticketKeys(app) {
    const plan = async () => ({
      shown: h("p", {}, "From now on tickets are signed with a new key. Tickets of the key before stay valid, so no producer is disturbed. A second rotation ends them: a producer that has not connected again in between must get a new producer id."),
      button: "Rotate the key",
      act: async () => {
        await app.log.rotateTicketKeys();
        return "Done: the cluster signs tickets with a new key.";
      },
    });
    const fields = h("p", { class: "whole quiet small" }, "A ticket proves that the cluster gave a producer id to its writer. Rotate the key when it may have been seen by others: twice at once, if it was stolen.");
    return [h("h2", {}, "Keys of tickets"), h("div", { key: "doing", class: "doing" }, h("details", { key: "tickets" }, h("summary", {}, "Rotate the key of tickets"), this.#forms.planned(app, "tickets", fields, "Preview", plan)))];
  }
}

/** The answer with everything by principal, and the rules of each by resource. */
function sorted(access) {
  const by = (...names) => (a, b) => names.map((name) => (a[name] < b[name] ? -1 : Number(a[name] > b[name]))).find((order) => order) ?? 0;
  const { tokens, acls, quotas } = access;
  return { ...access, tokens: [...tokens].sort(by("principal", "createdMs")), acls: [...acls].sort(by("principal", "resource")), quotas: [...quotas].sort(by("principal")) };
}

/** What this gateway enforces, and the next step where it is not everything. */
function enforced({ authentication, authorization }) {
  const steps = " docs/security.md, \"From nothing to a closed cluster\", has the steps.";
  if (authentication && authorization) return h("p", {}, "Clients have to show a token or a certificate, and the rules decide what they may do.");
  const words = {
    "false false": "Security is off: this gateway takes every client, and every client may do everything. Tokens and rules can be prepared here; they count when authentication and authorization are true in the gateways' configuration.",
    "true false": "Clients have to show a token or a certificate, and may then do everything: rules count when authorization is true in the gateways' configuration.",
    "false true": "The rules decide what clients may do. Clients without a token or a certificate are the principal anonymous, until authentication is true in the gateways' configuration.",
  }[`${authentication} ${authorization}`];
  return h("p", { class: "card warned" }, words, steps);
}

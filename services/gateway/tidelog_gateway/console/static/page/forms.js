/** Forms that change something in the cluster: a function gets what was typed, and the form shows what it says. */

import { h } from "./dom.js";
import { reason } from "./failures.js";

/** The forms of a panel, each with a name. Their state is the sentence below each form, and the plan that it shows. */
export class Forms {
  #said = {};
  #busy = new Set();
  #plans = {};

  /** Forget what the forms say and plan. */
  clear() {
    this.#said = {};
    this.#plans = {};
  }

  /**
   * A form that does something at once. `act(given, form)` gets the values of the fields by name, does it, and resolves
   * with a sentence about what was done. The reason of a failure is shown with its code and with what to do.
   */
  form(app, name, fields, button, act) {
    const onSubmit = (event) => {
      event.preventDefault();
      const form = event.target;
      const given = Object.fromEntries(new FormData(form));
      return this.#run(app, name, () => act(given, form));
    };
    return h("form", { class: "fields", onSubmit }, fields, this.#button(name, button), this.#status(name));
  }

  /**
   * A form that shows first what it would do. `plan(given, form)` resolves with a sentence if there is nothing to do, or
   * with `{shown, button, act}`: `shown` is drawn with a button of that title, which calls `act()`; that resolves with a
   * sentence. A plan is dropped when a field changes.
   */
  planned(app, name, fields, button, plan) {
    const drop = () => {
      if (!this.#plans[name]) return;
      delete this.#plans[name];
      app.draw();
    };
    const onSubmit = (event) => {
      event.preventDefault();
      const form = event.target;
      const given = Object.fromEntries(new FormData(form));
      delete this.#plans[name];
      return this.#run(app, name, async () => {
        const planned = await plan(given, form);
        if (typeof planned === "string") return planned;
        this.#plans[name] = planned;
        return "Nothing is changed yet.";
      });
    };
    return h("div", {}, h("form", { class: "fields", onSubmit, onInput: drop }, fields, this.#button(name, button), this.#status(name)), this.#plan(app, name));
  }

  /** Show a plan that no form has made: what `plan` of `planned` resolves with. It is drawn where `proposal` is. */
  propose(app, name, planned) {
    this.#plans[name] = planned;
    this.say(app, name, "Nothing is changed yet.");
  }

  /** The proposed plan with its sentence; without a plan the sentence alone, null if there is none. */
  proposal(app, name) {
    const plan = this.#plan(app, name);
    return plan || this.#said[name] ? h("div", { key: `proposal ${name}` }, this.#status(name), plan) : null;
  }

  /** Whether a plan of that name is shown. */
  plans(name) {
    return this.#plans[name] !== undefined;
  }

  #plan(app, name) {
    const planned = this.#plans[name];
    if (!planned) return null;
    const act = () =>
      this.#run(app, name, async () => {
        const words = await planned.act();
        delete this.#plans[name];
        return words;
      });
    const cancel = () => {
      delete this.#plans[name];
      this.say(app, name, "Nothing was changed.");
    };
    const buttons = [h("button", { class: "main", disabled: this.#busy.has(name), onClick: act }, planned.button), h("button", { onClick: cancel }, "Cancel")];
    return h("div", { class: "plan", role: "group", "aria-label": "Preview" }, planned.shown, h("p", { class: "acts" }, buttons));
  }

  /** Show a sentence below a form. */
  say(app, name, words) {
    this.#said = { ...this.#said, [name]: words };
    app.draw();
  }

  /** The sentence below a form; undefined: none. */
  said(name) {
    return this.#said[name];
  }

  #button(name, words) {
    return h("button", { class: "main", disabled: this.#busy.has(name) }, words);
  }

  #status(name) {
    return h("p", { class: "small said", role: "status" }, this.#said[name] ?? "");
  }

  async #run(app, name, act) {
    if (this.#busy.has(name)) return;
    this.#busy.add(name);
    this.say(app, name, "…");
    try {
      this.#said[name] = await act();
      app.hurry();
    } catch (error) {
      this.#said[name] = `Not done: ${reason(error)}`;
    }
    this.#busy.delete(name);
    app.draw();
  }
}

/** A field in which a name must be typed before the form can be sent: for what cannot be undone. */
export function confirmation(name) {
  const pattern = name.replace(/[^\p{L}\p{N}_]/gu, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
  return h("label", {}, `Type ${name} to confirm `, h("input", { name: "confirmed", required: true, pattern, autocomplete: "off", spellcheck: "false", title: `the name: ${name}` }));
}

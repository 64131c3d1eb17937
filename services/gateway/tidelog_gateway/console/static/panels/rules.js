/** The rules: which principal may do what. They are added and removed, and a question is answered from them. */

import { many } from "../cluster/cluster.js";
import { OPERATIONS } from "../cluster/operations.js";
import { concerns, decide, lostRights, ruleWords } from "../cluster/rules.js";
import { h } from "../page/dom.js";
import { Forms } from "../page/forms.js";
import { whole } from "../page/format.js";
import { fold, table } from "../page/table.js";

const SHOWN = 20;
/** Kinds of resources that have other words than `a topic`. */
const KINDS = { group: "a consumer group", app: "an application (transactions)", cluster: "the cluster" };

export class Rules {
  #forms = new Forms();
  #shown = SHOWN;
  /** By form the kind of resource that was chosen. */
  #kinds = {};
  /** The rule in words that may be removed. */
  #chosen = null;

  /** Forget what was typed and planned. */
  close() {
    this.#forms.clear();
    this.#kinds = {};
    this.#chosen = null;
  }

  /** `done(words)` is called when something was changed, and returns its sentence. */
  view(app, access, isWanted, done) {
    const { acls, heirs } = access;
    const inherited = heirs.map((principal) => ({ principal, operation: "security", resource: "cluster", inherited: true }));
    const found = [...acls, ...inherited].filter(isWanted);
    const shown = found.slice(0, this.#shown);
    return [
      h("h2", {}, "Rules"),
      this.#forms.plans("rules") ? null : this.#forms.proposal(app, "rules"),
      shown.length
        ? table("Rules", [["Principal"], ["Rule"], ["Operation"], ["Resource"], ["Change"]], shown.map((rule) => this.#row(app, access, rule, done)))
        : h("p", { class: "quiet" }, acls.length ? "No rule is about a principal with that in its name." : "There are no rules yet: where they are enforced, only superusers may do anything. Add one for each right."),
      fold(shown.length, found.length, SHOWN, `${whole(shown.length)} of ${many(found.length, "rule")}.`, () => ((this.#shown += SHOWN), app.draw())),
      h("div", { key: "doing", class: "doing" }, this.#add(app, access, done), this.#check(app, access), heirs.length ? this.#dropInherited(app, access, done) : null),
    ];
  }

  #row(app, access, rule, done) {
    const { principal, operation, resource, deny, inherited } = rule;
    const words = inherited ? `inherited ${principal}` : ruleWords(rule);
    const choose = () => {
      this.#chosen = words;
      this.#forms.propose(app, "rules", removal(app, access, rule, done));
    };
    const kind = inherited ? "inherited" : deny ? h("span", { class: "mark bad" }, "deny") : h("span", { class: "mark good" }, "allow");
    const act = inherited ? "–" : h("button", { "aria-label": `Remove the rule ${words}`, onClick: choose }, "Remove");
    const below = this.#chosen === words && this.#forms.plans("rules") ? this.#forms.proposal(app, "rules") : null;
    return [words, [principal, kind, operation, resource, act], below];
  }

  /** Fields of a resource and an operation. The kind is drawn anew when it changes: each has operations of its own. */
  #resource(app, form, last, placeholder) {
    const kind = this.#kinds[form] ?? "topic";
    const choose = (event) => {
      this.#kinds[form] = event.target.value;
      app.draw();
    };
    return [
      h("label", {}, "Principal ", h("input", { name: "principal", required: true, autocomplete: "off", spellcheck: "false", title: last ? "its name, or * for everybody" : "its name" })),
      h("label", {}, "On ", h("select", { name: "kind", onChange: choose }, Object.keys(OPERATIONS).map((one) => h("option", { value: one }, KINDS[one] ?? `a ${one}`)))),
      kind === "cluster" ? null : h("label", { key: "name" }, "Name ", h("input", { name: "name", required: true, placeholder, autocomplete: "off", spellcheck: "false" })),
      h("label", { key: `operations of ${kind}` }, "Operation ", h("select", { name: "operation" }, [...OPERATIONS[kind], ...last].map((one) => h("option", { value: one }, one === "*" ? "* (each)" : one)))),
    ];
  }

  #add(app, access, done) {
    const { acls, heirs } = access;
    const plan = async ({ effect, principal, kind, name, operation }) => {
      const rule = { principal, operation, resource: kind === "cluster" ? kind : `${kind}:${name}`, deny: effect === "deny" };
      if (acls.some((one) => ruleWords(one) === ruleWords(rule))) return "There is this rule already.";
      const may = (rules) => (decide(rules, principal, operation, rule.resource, heirs) ? "allowed" : "not allowed");
      const isOne = principal !== "*" && operation !== "*" && !rule.resource.endsWith("*");
      const act = async () => {
        await app.log.alterAcls({ add: [rule] });
        return done(`Done: ${ruleWords(rule)}`);
      };
      const shown = [
        h("p", {}, h("code", {}, ruleWords(rule))),
        isOne ? h("p", {}, `${principal}, ${operation} ${rule.resource}: ${may(acls)} now, ${may([...acls, rule])} then.`) : null,
        rule.deny ? h("p", {}, "A rule that denies goes before all that allow.") : null,
        warning(access, lostRights(access, rule, acls, [...acls, rule])),
      ];
      return { shown, button: "Add the rule", act };
    };
    const fields = [
      h("label", {}, "Rule ", h("select", { name: "effect" }, h("option", { value: "allow" }, "allow"), h("option", { value: "deny" }, "deny"))),
      this.#resource(app, "add", ["*"], "orders, or pub*"),
      h("p", { class: "whole quiet small" }, "Principal * is everybody. A name that ends with * covers all names that begin so; the cluster's own topics have to be named, as in __audit. Whoever may do anything with a topic may describe it."),
    ];
    return h("details", { key: "add-rule" }, h("summary", {}, "Add a rule"), this.#forms.planned(app, "add", fields, "Preview", plan));
  }

  #check(app, { acls, heirs }) {
    const act = async ({ principal, kind, name, operation }) => {
      const resource = kind === "cluster" ? kind : `${kind}:${name}`;
      const reasons = acls.filter((rule) => concerns(rule, principal, operation, resource)).map(ruleWords);
      const allowed = decide(acls, principal, operation, resource, heirs);
      const words = reasons.length ? `Rules about it: ${reasons.join("; ")}.` : allowed ? "The right is inherited." : "No rule is about it.";
      return `${principal} ${allowed ? "may" : "may not"} ${operation} ${resource}. ${words}`;
    };
    const fields = [this.#resource(app, "check", [], "orders"), h("p", { class: "whole quiet small" }, "This asks the rules. Superusers, which each gateway's configuration names, may do everything.")];
    return h("details", { key: "check" }, h("summary", {}, "Ask whether a principal may do something"), this.#forms.form(app, "check", fields, "Ask", act));
  }

  #dropInherited(app, access, done) {
    const { acls, heirs } = access;
    const plan = async () => {
      const act = async () => {
        await app.log.dropInheritedSecurity();
        return done("Done: nobody inherits the right.");
      };
      const lost = lostRights(access, { resource: "cluster" }, acls, acls, []);
      const words = h("p", {}, `No longer decide about tokens and rules, unless a rule gives them security on the cluster: ${heirs.join(", ")}.`);
      return { shown: [words, warning(access, lost)], button: "End it", act };
    };
    const fields = h("p", { class: "whole quiet small" }, "Before feature level 5 the right to administer the cluster included tokens and rules. Who had it then keeps both until this ends it. It cannot be undone, but rules can give the right again.");
    return h("details", { key: "inherited" }, h("summary", {}, "End the inherited right to change tokens and rules"), this.#forms.planned(app, "inherited", fields, "Preview", plan));
  }
}

function removal(app, access, rule, done) {
  const { acls } = access;
  const act = async () => {
    await app.log.alterAcls({ remove: [rule] });
    return done(`Done: removed ${ruleWords(rule)}`);
  };
  const lost = lostRights(access, rule, acls, acls.filter((one) => one !== rule));
  const effect = rule.deny ? "What other rules allow is then allowed again." : "Unless another rule allows it, it is then forbidden. Clients that may no longer read a topic lose their connection.";
  return { shown: [h("p", {}, "The rule ", h("code", {}, ruleWords(rule)), " is removed."), h("p", {}, effect), warning(access, lost)], button: "Remove the rule", act };
}

/** Says which rights are taken from who is logged in; null if none are. */
function warning({ principal }, lost) {
  if (!lost.length) return null;
  const rest = lost.includes("security cluster") ? " Then only somebody else can give it back." : "";
  return h("p", { class: "bad" }, `You are ${principal}: this takes your own right to ${lost.join(", ")}.${rest}`);
}

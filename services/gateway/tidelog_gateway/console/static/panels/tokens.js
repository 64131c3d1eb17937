/**
 * The tokens of the cluster: created, rotated and revoked. A new token is in the memory of the page only, as long as it is
 * shown: until its reader hides it, leaves the panel, or the page connects anew.
 */

import { many } from "../cluster/cluster.js";
import { h } from "../page/dom.js";
import { Forms } from "../page/forms.js";
import { clock, duration, whole } from "../page/format.js";
import { quantityOf, SECONDS } from "../page/quantities.js";
import { fold, table } from "../page/table.js";

const SHOWN = 20;

export class Tokens {
  #forms = new Forms();
  #shown = SHOWN;
  /** `{text, principal, log}`: the token that was made last, and by which client. */
  #made = null;
  /** The id of the token that is revoked or rotated, and which of both. */
  #chosen = {};

  /** Forget the new token, and what was typed and planned. */
  close() {
    this.#made = null;
    this.#chosen = {};
    this.#forms.clear();
  }

  /** `done(words)` is called when something was changed, and returns its sentence. */
  view(app, { tokens }, isWanted, done) {
    if (this.#made && this.#made.log !== app.log) this.#made = null;
    const found = tokens.filter(isWanted);
    const shown = found.slice(0, this.#shown);
    return [
      h("h2", {}, "Tokens"),
      this.#made ? this.#secret(app) : null,
      this.#forms.plans("tokens") ? null : this.#forms.proposal(app, "tokens"),
      shown.length
        ? table("Tokens", [["Id"], ["Principal"], ["Created"], ["Ends"], ["Change"]], shown.map((token) => this.#row(app, token, done)))
        : h("p", { class: "quiet" }, tokens.length ? "No principal with that in its name has a token." : "There are no tokens yet. Clients show one to say who they are: create one for each principal."),
      fold(shown.length, found.length, SHOWN, `${whole(shown.length)} of ${many(found.length, "token")}.`, () => ((this.#shown += SHOWN), app.draw())),
      h("div", { key: "doing", class: "doing" }, this.#create(app, done), tokens.length ? this.#revokeAll(app, tokens, done) : null),
    ];
  }

  #row(app, token, done) {
    const { tokenId, principal, createdMs, expiresMs } = token;
    const isOver = expiresMs >= 0 && expiresMs < Date.now();
    const ends = expiresMs < 0 ? "never" : [clock(expiresMs), isOver ? h("span", { class: "mark warning" }, "has ended") : null];
    const choose = (what) => {
      this.#chosen = { tokenId, what };
      if (what === "revoke") this.#forms.propose(app, "tokens", revocation(app, token, done));
      app.draw();
    };
    const acts = h(
      "span",
      { class: "acts" },
      h("button", { "aria-label": `Rotate token ${tokenId} of ${principal}`, onClick: () => choose("rotate") }, "Rotate"),
      h("button", { "aria-label": `Revoke token ${tokenId} of ${principal}`, onClick: () => choose("revoke") }, "Revoke"),
    );
    const isChosen = this.#chosen.tokenId === tokenId;
    const below = !isChosen ? null : this.#chosen.what === "rotate" ? this.#rotate(app, token, done) : this.#forms.plans("tokens") ? this.#forms.proposal(app, "tokens") : null;
    return [tokenId, [h("code", {}, tokenId), principal, createdMs > 0 ? clock(createdMs) : "–", h("span", {}, ends), acts], below];
  }

  #create(app, done) {
    const act = async ({ principal, lifetime }, form) => {
      const { log } = app;
      this.#made = { text: await log.createToken(principal, { lifetimeS: secondsOf(lifetime) }), principal, log };
      form.reset();
      return done("Created: it is shown above, and only now.");
    };
    const fields = [
      h("label", {}, "Principal ", h("input", { name: "principal", required: true, autocomplete: "off", spellcheck: "false" })),
      h("label", {}, "Ends after ", h("input", { name: "lifetime", placeholder: "never", autocomplete: "off" })),
      h("p", { class: "whole quiet small" }, `A principal is the name that rules and quotas have. The time is ${SECONDS.like}.`),
    ];
    return h("details", { key: "create-token" }, h("summary", {}, "Create a token"), this.#forms.form(app, "create", fields, "Create", act));
  }

  #rotate(app, { tokenId, principal }, done) {
    const plan = async ({ grace, lifetime }) => {
      const options = { graceS: secondsOf(grace) ?? 0, lifetimeS: secondsOf(lifetime) };
      const until = options.graceS ? `stays good for ${duration(options.graceS)}` : "ends at once, and connections that were opened with it are closed";
      const act = async () => {
        const { log } = app;
        this.#made = { text: await log.rotateToken(tokenId, options), principal, log };
        this.#chosen = {};
        return done("Created: it is shown above, and only now.");
      };
      const words = h("p", {}, `${principal} gets a new token. Token ${tokenId} ${until}.`);
      return { shown: [words, warning(app, [tokenId])], button: "Rotate the token", act };
    };
    const fields = [
      h("label", {}, "The former stays good for ", h("input", { name: "grace", placeholder: "0s", autocomplete: "off" })),
      h("label", {}, "The new one ends after ", h("input", { name: "lifetime", placeholder: "never", autocomplete: "off" })),
      h("p", { class: "whole quiet small" }, `Each is ${SECONDS.like}.`),
    ];
    return this.#forms.planned(app, `rotate ${tokenId}`, fields, "Preview", plan);
  }

  #revokeAll(app, tokens, done) {
    const plan = async ({ principal }) => {
      const found = tokens.filter((token) => token.principal === principal);
      if (!found.length) return `${principal} has no tokens.`;
      const act = async () => {
        await app.log.revokeTokensOf(principal);
        return done(`Done: ${many(found.length, "token")} of ${principal} revoked.`);
      };
      const ids = found.map(({ tokenId }) => tokenId);
      const words = h("p", {}, `${many(found.length, "token")} of ${principal} will be of no use, and connections that were opened with them are closed: `, h("code", {}, ids.join(" ")));
      return { shown: [words, warning(app, ids)], button: "Revoke them all", act };
    };
    const fields = h("label", {}, "Principal ", h("input", { name: "principal", required: true, autocomplete: "off", spellcheck: "false" }));
    return h("details", { key: "revoke-all" }, h("summary", {}, "Revoke all tokens of a principal"), this.#forms.planned(app, "revoke-all", fields, "Preview", plan));
  }

  #secret(app) {
    const { text, principal } = this.#made;
    const hide = () => {
      this.#made = null;
      app.draw();
    };
    const buttons = [navigator.clipboard ? h("button", { onClick: () => navigator.clipboard.writeText(text) }, "Copy") : null, h("button", { onClick: hide }, "Hide it")];
    return h(
      "div",
      { key: "secret", class: "plan secret", role: "group", "aria-label": "New token" },
      h("p", {}, `The new token of ${principal}. It is shown only now: the cluster keeps its SHA-256. It goes when you hide it or leave this panel.`),
      h("p", {}, h("code", {}, text)),
      h("p", { class: "acts" }, buttons),
    );
  }
}

function revocation(app, { tokenId, principal }, done) {
  const act = async () => {
    await app.log.revokeToken(tokenId);
    return done(`Done: token ${tokenId} of ${principal} is revoked.`);
  };
  const words = h("p", {}, `Token ${tokenId} of ${principal} will be of no use, and connections that were opened with it are closed at once.`);
  return { shown: [words, warning(app, [tokenId])], button: "Revoke the token", act };
}

/** Says that this page is connected with one of the tokens that end; null if it is not. */
function warning(app, ended) {
  return ended.includes(app.tokenId) ? h("p", { class: "bad" }, "This page is connected with it: you then need another token to go on here.") : null;
}

/** Of nothing null: for ever. */
function secondsOf(text) {
  return text.trim() ? quantityOf(text, SECONDS) : null;
}

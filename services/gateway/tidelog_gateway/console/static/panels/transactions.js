/** Transactions that have not ended: what readers of committed records wait for, and how it is ended by hand. */

import { many } from "../cluster/cluster.js";
import { h } from "../page/dom.js";
import { unknown } from "../page/failures.js";
import { Forms } from "../page/forms.js";
import { duration, whole } from "../page/format.js";
import { fold, table } from "../page/table.js";
import { Hanging } from "./hanging-transactions.js";

const EVERY_MS = 2000;
/** Transactions are asked for again after 20 times as long as it took, and not sooner than `EVERY_MS`. */
const SPARING = 20;
const TURN_MS = 500;
const SHOWN = 50;
const HEADS = [["Application"], ["Staged as"], ["State"], ["For"], ["Aborted in"], ["Partitions", "number"], ["Producer id", "number"], ["Epoch", "number"]];
const PENDING = "The end is decided; some partitions have no marker of it yet. If it stays so, a partition has no leader.";

export class TransactionsPanel {
  #app = null;
  /** `{transactions, batches}` of one application, or of all. */
  #found = null;
  #error = null;
  #turn = null;
  #asking = false;
  #due = 0;
  #wanted = "";
  #shown = SHOWN;
  #forms = new Forms();
  #hanging = new Hanging();
  /** The key of the transaction that may be aborted. */
  #chosen = null;

  /** Show the transactions of all applications, or of one, until `close`. */
  open(app, [name]) {
    this.close();
    this.#app = name || null;
    this.#found = null;
    this.#error = null;
    this.#due = 0;
    this.#turn = setInterval(() => this.#look(app), TURN_MS);
    this.#look(app);
  }

  close() {
    clearInterval(this.#turn);
    this.#forms.clear();
    this.#hanging.close();
  }

  async #look(app) {
    if (document.hidden || this.#asking || performance.now() < this.#due || !app.log?.gateway) return;
    this.#asking = true;
    const [name, began] = [this.#app, performance.now()];
    try {
      const found = name === null ? { transactions: await app.log.transactions() } : await app.log.describeTransactions(name);
      if (name === this.#app) [this.#found, this.#error] = [found, null];
    } catch (error) {
      if (name === this.#app) [this.#found, this.#error] = [null, error];
    }
    this.#asking = false;
    if (name === this.#app) this.#due = performance.now() + Math.max(EVERY_MS, SPARING * (performance.now() - began));
    app.draw();
  }

  view(app) {
    this.#look(app);
    const past = app.live ? null : h("p", { class: "quiet" }, "Transactions are shown as they are now: the timeline does not tell of them.");
    const failure = this.#error ? unknown(this.#error) : null;
    return this.#app === null ? [this.#listHead(app), past, failure, this.#found ? this.#list(app) : null, h("div", { key: "doing", class: "doing" }, this.#hanging.view(app))] : [this.#oneHead(), past, failure, this.#found ? this.#one(app) : null];
  }

  // --- all ---

  #listHead(app) {
    const find = (event) => {
      this.#wanted = event.target.value;
      app.draw();
    };
    return h("div", { class: "row" }, h("h1", {}, "Transactions"), h("label", { class: "small" }, "Application contains ", h("input", { type: "search", onInput: find })));
  }

  #list(app) {
    const all = this.#found.transactions;
    const found = all.filter((one) => one.app.includes(this.#wanted)).sort((a, b) => a.sinceMs - b.sinceMs);
    if (!found.length) {
      if (all.length) return h("p", { class: "quiet" }, "No application with that in its name has a transaction.");
      return h("p", { class: "quiet" }, "No transaction is open, or these rights reach none. A program begins one with ", h("code", {}, "log.transaction(APP)"), "; docs/transactions.md has the rest.");
    }
    const link = (one) => h("a", { href: `#/transactions/${encodeURIComponent(one.app)}` }, one.app);
    const shown = found.slice(0, this.#shown);
    return [
      table("Transactions", HEADS, shown.map((one) => [keyOf(one), cells(link(one), one)])),
      fold(shown.length, found.length, SHOWN, `${whole(shown.length)} of ${many(found.length, "transaction")}, the oldest first: these hold readers up longest.`, () => ((this.#shown += SHOWN), app.draw())),
    ];
  }

  // --- of one application ---

  #oneHead() {
    return h("div", { class: "row" }, h("h1", {}, this.#app), h("a", { href: "#/transactions", class: "small" }, "All transactions"));
  }

  #one(app) {
    const { transactions, batches } = this.#found;
    const named = new Map(app.cluster.topics.map(({ topicId, name }) => [topicId, name]));
    return [
      this.#forms.plans("abort") ? null : this.#forms.proposal(app, "abort"),
      transactions.length
        ? table("Transactions", [...HEADS.slice(1), ["Change"]], transactions.map((one) => this.#row(app, one, named)))
        : h("p", { class: "quiet" }, "The application has no transaction. All transactions has the others; a program begins one with ", h("code", {}, `log.transaction("${this.#app}")`), "."),
      batches.length ? h("p", {}, `The newest batches that it has committed: ${batches.slice(-10).join(" ")}.`) : null,
    ];
  }

  #row(app, one, named) {
    const key = keyOf(one);
    const choose = () => {
      this.#chosen = key;
      this.#forms.propose(app, "abort", this.#abortion(app, one, named));
    };
    const isOpen = ["open", "prepared"].includes(one.state);
    const act = isOpen ? h("button", { "aria-label": `Abort transaction ${one.staged || one.app}`, onClick: choose }, "Abort") : "–";
    const written = one.parts.length ? h("p", {}, `Has written to ${places(one.parts, named)}.`) : null;
    const pending = one.pending.length ? h("p", { class: "bad" }, `Not ended yet in ${places(one.pending, named)}. ${PENDING}`) : null;
    const plan = this.#chosen === key && this.#forms.plans("abort") ? this.#forms.proposal(app, "abort") : null;
    return [key, [...cells(null, one).slice(1), act], written || pending || plan ? [written, pending, plan] : null];
  }

  #abortion(app, one, named) {
    const name = one.app;
    const act = async () => {
      const { transactions } = await app.log.describeTransactions(name);
      const there = transactions.find((other) => keyOf(other) === keyOf(one) && other.producerEpoch === one.producerEpoch);
      if (!there || !["open", "prepared"].includes(there.state)) return "Nothing was aborted: that transaction has ended meanwhile.";
      const isDone = one.staged ? (await app.log.abort(name, [one.staged]), true) : await app.log.abortTransaction(name);
      this.#due = 0;
      return isDone ? "Done: the transaction is aborted." : "Nothing was aborted: the transaction is committed.";
    };
    const records = one.parts.length ? `Its records in ${places(one.parts, named)} never become visible` : "It has no records";
    const rest = one.staged ? "A commit that names it is refused." : "Its program gets an error at its next record or its commit (TRANSACTION_ABORTED), and may begin another transaction.";
    return { shown: h("p", {}, `${records}. ${rest}`), button: "Abort the transaction", act };
  }
}

function keyOf({ app, staged, producerId }) {
  return `${app} ${staged} ${producerId}`;
}

function cells(name, { staged, state, sinceMs, untilMs, partitions, producerId, producerEpoch }) {
  const isDecided = state === "committing" || state === "aborting";
  const shown = isDecided ? h("span", { class: "mark warning", title: PENDING }, state) : state;
  const span = (ms) => duration(Math.max(0, Math.round(ms / 1000)));
  return [name, staged || "–", shown, sinceMs < 0 ? "–" : span(Date.now() - sinceMs), untilMs < 0 ? "–" : span(untilMs - Date.now()), partitions, String(producerId), producerEpoch];
}

/** Partitions as `orders/0`; of a deleted topic with its id. */
function places(shares, named) {
  return shares.flatMap(({ topicId, partitions }) => partitions.map((one) => `${named.get(topicId) ?? topicId}/${one}`)).join(" ");
}

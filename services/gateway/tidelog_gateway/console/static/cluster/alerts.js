/**
 * What the metrics of servers, of the active controller and of this gateway say is wrong: the alerts that Prometheus
 * knows, too (deploy/prometheus/alerts.yml), as far as one look shows them.
 */

import { duration, whole } from "../page/format.js";
import { ALERT_RULES } from "./alert-rules.js";
import { parse } from "./measures.js";

const LOOK_MS = 10_000;
/** A hidden page looks so often. */
const HIDDEN_MS = 60_000;
const COMPARE = {
  ">": (value, bound) => value > bound,
  ">=": (value, bound) => value >= bound,
  "==": (value, bound) => value === bound,
  "<=": (value, bound) => value <= bound,
};

/** Most sentences of one alert that are shown; the others are counted. */
const MOST_SENTENCES = 3;

/**
 * The alerts in pages of metrics, `{name, level, words, help}`, the bad ones first. `pages`: by process, its page as text.
 * A rule whose bound is null compares with the clock of the process.
 * What several processes or series say in the same words is there once. An alert whose help is the same for several of
 * them is there once, too, with a sentence for each in `words`.
 */
export function alertsIn(pages, rules = ALERT_RULES) {
  const found = new Map();
  for (const [node, text] of pages) {
    const samples = parse(text);
    const now = samples.get("tidelog_wall_clock_seconds");
    for (const [key, value] of samples) {
      const at = key.indexOf("{");
      const metric = at < 0 ? key : key.slice(0, at);
      for (const rule of rules) {
        if (rule.metric !== metric || !COMPARE[rule.compare](value, rule.bound ?? now)) continue;
        const fill = (template) => filled(template, { instance: node, ...labelsOf(key) }, value);
        const help = fill(rule.help);
        const alert = found.get(rule.name + help) ?? { name: rule.name, level: rule.level, sentences: new Set(), help };
        alert.sentences.add(fill(rule.words));
        found.set(rule.name + help, alert);
      }
    }
  }
  const alerts = [...found.values()].map(({ sentences, ...alert }) => ({ ...alert, words: inWords([...sentences]) }));
  return alerts.sort((a, b) => (a.level === "bad" ? 0 : 1) - (b.level === "bad" ? 0 : 1));
}

function inWords(sentences) {
  const more = sentences.length - MOST_SENTENCES;
  return [...sentences.slice(0, MOST_SENTENCES), ...(more > 0 ? [`${more} more`] : [])].join("; ");
}

/** A text of Prometheus' alerts with its values: `{{ $labels.NAME }}`, `{{ $value }}`, `{{ $value | humanizeDuration }}`. */
function filled(template, labels, value) {
  return template.replace(/\{\{ \$(labels\.(\w+)|value)(?: \| (\w+))? \}\}/g, (_, what, label, how) => {
    if (label) return labels[label] ?? "";
    if (how === "humanizeDuration") return duration(value);
    return how === "humanizePercentage" ? `${Math.round(value * 100)} %` : whole(value);
  });
}

function labelsOf(key) {
  return Object.fromEntries([...key.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, text]) => [name, text]));
}

/** Looks now and then while the page is connected. `found` is what was there last. */
export class Alerts {
  found = [];
  #onChange;
  #pause;
  #log = null;

  /** `onChange()` is called when something else is found. `pause(ms)` resolves after that time. */
  constructor(onChange, pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))) {
    this.#onChange = onChange;
    this.#pause = pause;
  }

  /**
   * Look until there is another client, or the user has no right to see metrics: each refusal would push out one that
   * the user may ask about. `nodes()` are the servers that are heard of, and the active controller.
   */
  async follow(log, nodes) {
    this.#log = log;
    while (log === this.#log) {
      const asked = [["this gateway", ""], ...nodes().map((node) => [node, node])];
      const answers = await Promise.all(asked.map(([name, node]) => log.metrics(node).then(({ page }) => [name, page], ({ code }) => code)));
      if (log !== this.#log || answers.every((answer) => answer === "FORBIDDEN")) return;
      this.#know(alertsIn(answers.filter(Array.isArray)));
      await this.#pause(document.hidden ? HIDDEN_MS : LOOK_MS);
    }
  }

  #know(found) {
    const isSame = JSON.stringify(found) === JSON.stringify(this.found);
    this.found = found;
    if (!isSame) this.#onChange();
  }
}

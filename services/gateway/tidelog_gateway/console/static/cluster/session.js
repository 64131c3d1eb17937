/**
 * The page's connection: one client of this gateway, which is asked now and then what the cluster looks like.
 *
 * `phase`: `connecting`; `up`; `gone` (the gateway does not answer: what is shown is old); `token` (it wants to know who
 * we are, or does not believe it). The client connects again by itself; here it is only looked whether it is connected.
 */

import * as tidelog from "../client/tidelog.js";
import { liveCluster } from "./cluster.js";
import { followQuorum } from "./quorum.js";
import { decompress } from "../records/zstd.js";

const TOKEN = "tidelog-token";
const LOOK_MS = 250;
const STATUS_MS = 1000;
/** Where changes are told by the timeline, it is enough to look so often. */
const RELAXED_MS = 5000;
/** A hidden page looks so often. */
const HIDDEN_MS = 20_000;
/** Of the time not more than one part in so many is spent in asking. */
const SPARING = 20;
const REQUEST_TIMEOUT_S = 5;

export class Session {
  phase = "connecting";
  /** Why it is not `up`. */
  error = null;
  log = null;
  /** The cluster as it was told last; null before. */
  cluster = null;
  /** Set while every change of the cluster is told as it happens. */
  told = false;
  #onChange;
  #url;
  #token = sessionStorage.getItem(TOKEN) ?? "";
  #status = null;
  /** By topic id: what was told of it last, and the same as a text. */
  #topics = new Map();
  #quorum = null;
  #wake = () => {};

  /** `onChange()` is called whenever something of it has changed. */
  constructor(url, onChange) {
    this.#url = url;
    this.#onChange = onChange;
  }

  /** Say who we are, from now on; it is kept as long as the tab is open. */
  useToken(token) {
    sessionStorage.setItem(TOKEN, token);
    this.#token = token;
    this.#wake();
  }

  /** The id of the cluster's token that the page connects with; "": it has none. */
  get tokenId() {
    const [kind, id] = this.#token.split("_");
    return kind === "tide" && id ? id : "";
  }

  /** Look at once. */
  hurry() {
    this.#wake();
  }

  /** For ever. `onLog(log)` is called with each new client, which is there until it is closed. */
  async run(onLog) {
    for (;;) {
      const token = this.#token;
      const ticker = setInterval(() => this.#listen(), LOOK_MS);
      try {
        const options = {
          token,
          requestTimeoutS: REQUEST_TIMEOUT_S,
          connectTimeoutS: REQUEST_TIMEOUT_S,
          discover: false, // other gateways take no pages of this one
          operator: true,
          codecs: { zstd: { decompress } },
        };
        this.log = await tidelog.connect(this.#url, options);
        onLog(this.log);
        this.#watchQuorum(this.log);
        await this.#watch(this.log);
      } catch (error) {
        this.error = error;
        this.phase = error.code === "UNAUTHENTICATED" ? "token" : "gone";
        this.#onChange();
      }
      clearInterval(ticker);
      await this.log?.close().catch(() => null);
      this.log = null;
      const isRefused = this.phase === "token" && token === this.#token;
      await this.#pause(isRefused ? Infinity : LOOK_MS);
    }
  }

  /** The client knows first that the gateway is gone, and that it is there again. */
  #listen() {
    if (!this.log) return;
    if (!this.log.gateway) this.#become("gone");
    else if (this.phase === "gone") this.hurry();
  }

  /** Until it takes too long to get an answer. */
  async #watch(log) {
    for (;;) {
      const before = performance.now();
      const status = this.#known(await log.status());
      if (status !== this.#status || this.phase !== "up") this.#tell(status, this.#quorum);
      else this.cluster.atMs = Date.now();
      const leastMs = document.hidden ? HIDDEN_MS : this.told ? RELAXED_MS : STATUS_MS;
      await this.#pause(Math.max(leastMs, SPARING * (performance.now() - before)));
    }
  }

  /**
   * The answer with the very objects of the last one for topics of which it says the same: those are not drawn anew. If
   * it says the same of everything, the last answer.
   */
  #known(status) {
    const known = this.#topics;
    this.#topics = new Map();
    const topics = status.topics.map((topic) => {
      const text = JSON.stringify(topic);
      const before = known.get(topic.topicId);
      const kept = before?.text === text ? before : { text, topic };
      this.#topics.set(topic.topicId, kept);
      return kept.topic;
    });
    const before = this.#status;
    const text = JSON.stringify({ ...status, topics: null });
    const same = before?.text === text && before.topics.length === topics.length && topics.every((topic, i) => topic === before.topics[i]);
    return same ? before : { ...status, topics, text };
  }

  /** The controllers may take their time, when they elect; nothing else waits for that. */
  #watchQuorum(log) {
    const onQuorum = (quorum) => {
      if (this.phase === "up" && this.#status) this.#tell(this.#status, quorum);
      else this.#quorum = quorum;
    };
    return followQuorum(log, () => log === this.log, onQuorum);
  }

  #tell(status, quorum) {
    this.#status = status;
    this.#quorum = quorum;
    this.error = null;
    this.phase = "up";
    this.cluster = liveCluster(status, quorum, Date.now());
    this.#onChange();
  }

  #become(phase) {
    if (this.phase === phase) return;
    this.phase = phase;
    this.#onChange();
  }

  #pause(ms) {
    return new Promise((resolve) => {
      this.#wake = resolve;
      if (ms !== Infinity) setTimeout(resolve, ms);
    });
  }
}

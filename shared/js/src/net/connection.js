/**
 * One client's connection to the gateways: a link to one reachable gateway at a time, opened again whenever it is
 * lost. `core/gateway-addresses.js` decides which address is tried next, and how a client finds further gateways.
 *
 * Producers and consumers register here. The connection calls them when the link is lost and when a new one is open.
 * Their cores decide what happens then (send again, subscribe again).
 */

import { deferred, now, sleep } from "../clock.js";
import { GatewayAddresses } from "../core/gateway-addresses.js";
import { ProduceWindow } from "../core/produce-window.js";
import { BrokerError, Closed, TimedOut, Unreachable } from "../errors.js";
import { Link } from "./link.js";
import * as messages from "../wire/messages.js";
import { unless } from "../wire/shapes.js";

/** First pause in seconds after a round in which no gateway could be reached; it doubles up to `BACKOFF_MAX_S`. */
const BACKOFF_S = 0.05;
const BACKOFF_MAX_S = 1;
/** Seconds after which a connected client asks again which gateways there are. */
const DISCOVER_S = 300;
/** Error codes after which another try is useless until an operator changes something. */
const REFUSED = ["UNAUTHENTICATED", "FORBIDDEN"];
/** Shortest pause in seconds before a request is repeated after a retriable error. */
const RETRY_S = 0.05;

export class Connection {
  /** The open link, or null. */
  link = null;
  /** The error of the last try to connect that failed, or of the last link that ended. */
  error = null;
  downSince = now();
  /** What all producers of this connection have in flight. */
  window = new ProduceWindow();
  #WebSocket;
  /** The fields of each hello that the options decide. */
  #given;
  #addresses;
  /** The cluster whose gateways were found. */
  #cluster;
  /** The link that is being opened, or was opened last. */
  #opening = null;
  /** The refusal of each given gateway that has refused this client's identity since a link was last open, by URL. */
  #refusals = new Map();
  #stop = new AbortController();
  #changed = new AbortController();
  #numbers = 0;
  #ids = 0;
  #attached = new Set();
  #acked = new Map();
  #subs = new Map();
  /** The ticket of each producer id that is in use. */
  #tickets = new Map();

  constructor(urls, { requestTimeoutS, token = "", discover = true, operator = false, WebSocket }) {
    this.#addresses = new GatewayAddresses(urls, { discover, secure: globalThis.location?.protocol === "https:" });
    this.requestTimeoutS = requestTimeoutS;
    this.#given = { token: unless("", token), operator: unless(false, operator) };
    this.#WebSocket = WebSocket;
  }

  get closed() {
    return this.#stop.signal.aborted;
  }

  // --- keeping the link ---

  /** Connect, and connect to the next gateway whenever the link is lost; until `close`. */
  async run() {
    const renewing = this.#renew();
    let pause = BACKOFF_S;
    while (!this.closed) {
      const url = this.#addresses.next();
      if (await this.#use(url)) {
        this.#addresses.onLost(url);
        pause = BACKOFF_S;
      } else if (this.#addresses.roundOver) {
        await sleep(pause, this.#stop.signal);
        pause = Math.min(2 * pause, BACKOFF_MAX_S);
      }
    }
    await renewing;
  }

  /** Ask every `DISCOVER_S` seconds which gateways there are; until `close`. */
  async #renew() {
    while (this.#addresses.discover) {
      await sleep(DISCOVER_S, this.#stop.signal);
      if (this.closed) return;
      const { link } = this;
      link?.call({ op: "metadata" }, messages.metadataAnswer, this.requestTimeoutS).then(
        (answer) => this.#learn(link, answer),
        () => null,
      );
    }
  }

  /** Keep the gateways that an answer to `metadata` names, which came over this link. */
  #learn(link, { cluster, gateways }) {
    this.#cluster = cluster;
    this.#addresses.learn(gateways.map(({ url }) => url), link.url);
  }

  /** Close the connection for good: everything that waits ends with `CLOSED`. */
  close() {
    this.#stop.abort();
    this.#opening?.close(new Closed("the client was closed"));
    this.#noteChange();
  }

  /**
   * Use this gateway until the link is lost; resolves with false if it could not be reached. A gateway that was found
   * must be of the cluster that has named it.
   */
  async #use(url) {
    const ended = deferred();
    const given = this.#addresses.given.includes(url);
    const hello = { ...this.#given, cluster: given ? undefined : this.#cluster };
    let link;
    try {
      link = this.#opening = new Link(this.#WebSocket, url, hello, (op, message) => this.#onNotice(op, message));
      await link.open(ended.resolve);
    } catch (error) {
      this.error = error;
      this.#refusals.delete(url);
      if (given && REFUSED.includes(error.code)) this.#refusals.set(url, error);
      this.#noteChange();
      return false;
    }
    this.#up(link);
    await ended.promise;
    this.#down(link);
    return true;
  }

  #up(link) {
    this.link = link;
    this.window.begin(link.peer.limits);
    this.#refusals.clear();
    for (const producerId of this.#tickets.keys()) this.#present(link, producerId);
    for (const attached of this.attached) attached.onLinkUp();
    this.#noteChange();
  }

  #down(link) {
    this.link = null;
    this.window.begin({});
    this.error = link.error;
    this.downSince = now();
    this.#acked.clear();
    this.#subs.clear();
    for (const attached of this.attached) attached.onLinkDown();
    this.#noteChange();
  }

  #noteChange() {
    const changed = this.#changed;
    this.#changed = new AbortController();
    changed.abort();
  }

  /** Return the error for a caller that waited too long for a link. */
  unreachable() {
    const { given, found } = this.#addresses;
    const text = `no gateway can be reached (${[...given, ...found].join(", ")}); last error: ${this.error}`;
    return new Unreachable(text, { cause: this.error });
  }

  /**
   * Resolve with the open link, as soon as there is one. Rejects with `Unreachable` at the deadline, or at once with
   * the refusal if every given gateway refuses this client's identity.
   */
  async waitUp(deadline) {
    for (;;) {
      if (this.closed) throw new Closed("the client was closed");
      if (this.link && !this.link.closed) return this.link;
      if (this.#refusals.size === new Set(this.#addresses.given).size) {
        const { code, message } = [...this.#refusals.values()].at(-1);
        throw new BrokerError(message, { code });
      }
      const left = deadline - now();
      if (left <= 0) throw this.unreachable();
      await sleep(left, this.#changed.signal);
    }
  }

  // --- requests ---

  /**
   * Send a request and resolve with its answer, on as many links as it takes. `again`: the request may be executed
   * twice without harm, so it is repeated after a lost link. Retriable errors are waited out, for `patienceS` at
   * most. Rejects with `BrokerError`, `TimedOut`, `Unreachable` or `Closed`.
   */
  async call(request, shape = messages.done, { again = true, timeoutS = this.requestTimeoutS, patienceS = Infinity } = {}) {
    const deadline = now() + timeoutS;
    const patientUntil = Math.min(deadline, now() + patienceS);
    let last = null; // why the last try was refused: it has the cause, and a time-out of the next try has not
    for (;;) {
      const link = await this.waitUp(deadline);
      try {
        const answer = await link.call(request, shape, Math.max(0.001, deadline - now()));
        if (shape === messages.metadataAnswer) this.#learn(link, answer);
        return answer;
      } catch (error) {
        if (this.closed) throw new Closed("the client was closed");
        if (error instanceof TimedOut) throw (again && last) || error;
        if (error instanceof Unreachable) {
          if (again) continue;
          throw error;
        }
        const hopeless = !error.retriable || (error.unknownOutcome && !again);
        const pause = Math.max(RETRY_S, error.pauseS);
        if (hopeless || now() + pause >= patientUntil) throw error;
        last = error;
        await sleep(pause, this.#stop.signal);
      }
    }
  }

  // --- producer ids ---

  /**
   * Announce batches under this producer id, at epoch 0: present the ticket on this link, and on every later one
   * before anything else is sent. With the ticket "" nothing is announced: the cluster needs none.
   */
  useProducer(producerId, ticket) {
    if (!ticket) return;
    this.#tickets.set(producerId, ticket);
    if (this.link) this.#present(this.link, producerId);
  }

  /** End the use of this producer id, and tell the gateway. */
  releaseProducer(producerId) {
    if (!this.#tickets.delete(producerId) || !this.link) return;
    const request = { op: "release_producer", producer_id: producerId };
    this.link.call(request, messages.done, this.requestTimeoutS).catch(() => null);
  }

  /**
   * Present a ticket. The batches that follow need not wait for the answer, which brings a ticket that is valid for
   * longer. If the ticket is refused the batches are refused, too, and their producers decide what to do.
   */
  #present(link, producerId) {
    const ticket = this.#tickets.get(producerId);
    const request = { op: "use_producer", producer_id: producerId, producer_epoch: 0, ticket };
    link.call(request, messages.producerTicket, this.requestTimeoutS).then(
      (answer) => {
        if (answer.ticket && this.#tickets.get(producerId) === ticket) this.#tickets.set(producerId, answer.ticket);
      },
      () => null,
    );
  }

  // --- who listens ---

  /** Register a producer or consumer: its `onLinkUp` and `onLinkDown` are called from now on. */
  attach(attached) {
    this.#attached.add(attached);
    if (this.link) attached.onLinkUp();
  }

  /** The registered producers and consumers. */
  get attached() {
    return [...this.#attached];
  }

  /** Stop calling a producer or consumer. */
  detach(attached) {
    this.#attached.delete(attached);
  }

  /** Return the number of a new batch of this producer, by which its ack names it. */
  nextId(producer) {
    const id = ++this.#ids;
    this.#acked.set(id, producer);
    return id;
  }

  /** Return the number of a new subscription of this consumer, by which deliveries name it. */
  addSub(consumer) {
    const sub = ++this.#numbers;
    this.#subs.set(sub, consumer);
    return sub;
  }

  /** End a subscription; deliveries that still arrive for it are dropped. */
  stopSub(sub) {
    if (!this.#subs.delete(sub) || !this.link) return;
    this.link.call({ op: "unsubscribe", sub }, messages.done, this.requestTimeoutS).catch(() => null);
  }

  #onNotice(op, message) {
    if (op === "delivery") {
      this.#subs.get(message.sub)?.onDelivery(message);
      return;
    }
    this.window.remove(message.acks);
    const byProducer = new Map();
    for (const ack of message.acks) {
      const producer = this.#acked.get(ack.id);
      this.#acked.delete(ack.id);
      if (!this.#attached.has(producer)) continue;
      if (!byProducer.has(producer)) byProducer.set(producer, []);
      byProducer.get(producer).push(ack);
    }
    for (const [producer, acks] of byProducer) producer.onAcks(acks);
  }
}

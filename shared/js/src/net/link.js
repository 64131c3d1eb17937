/**
 * One open connection to a gateway: hello, request numbers, answers, deadlines, silence.
 *
 * A browser shows no pings to a page. So if nothing was received for `SILENCE_S / 3` the link sends a small request,
 * and if no answer comes in time either, the gateway counts as gone. A half-open connection is thus noticed also by a
 * consumer that merely waits.
 */

import { Timer, now } from "../clock.js";
import { decodePrefix, encodeMessage } from "../wire/cbor.js";
import { BrokerError, ProtocolError, TidelogError, TimedOut, Unreachable, fromInfo } from "../errors.js";
import { ASKED } from "./capabilities.js";
import * as messages from "../wire/messages.js";

const SUBPROTOCOL = "tidelog.v1";
const VERSION = 1;
/** Seconds for opening the connection, hello and welcome. */
const OPEN_TIMEOUT_S = 5;
/** Seconds without any message after which the gateway counts as gone; it was asked for one after a third of them. */
const SILENCE_S = 15;
/** Most CBOR items of a header: metadata of 100,000 partitions with their offsets fit. */
const HEADER_ITEMS = 4 << 20;
/** Close code for a fault of the gateway: programs cannot send 1002. */
const PROTOCOL_FAULT = 4002;

export class Link {
  /** The reason why the link ended; null while it is open. */
  error = null;
  /** The gateway as its welcome describes it: cluster, node, limits. */
  peer = null;
  closed = false;
  #socket;
  #hello;
  #onNotice;
  #onClose = () => {};
  #pending = new Map();
  #nextId = 1;
  #heardAt = now();
  #asked = false;
  #silence = new Timer(() => this.#listen());

  /**
   * `hello`: the fields of the hello that differ between links. `onNotice(op, message)` is called with one-way
   * messages. Throws `Unreachable` for a text that is no URL.
   */
  constructor(WebSocket, url, hello, onNotice) {
    this.url = url;
    this.#hello = hello;
    this.#onNotice = onNotice;
    try {
      this.#socket = new WebSocket(url, SUBPROTOCOL);
    } catch (error) {
      throw new Unreachable(`${url} is no URL of a gateway: ${error.message}`);
    }
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onmessage = (event) => this.#onMessage(event.data);
    this.#socket.onclose = (event) => this.#end(whyClosed(url, event));
    this.#socket.onerror = (event) => {
      this.error ??= new Unreachable(`${url}: ${inWords(event.message || event.error?.message || "no connection")}`);
    };
  }

  // --- what its users call ---

  /**
   * Open the connection and resolve when the gateway has answered the hello; `onClose()` is called once when the link
   * has ended. Rejects with `Unreachable` if there is no connection, or with the error that refused the hello.
   */
  async open(onClose) {
    await this.#greet();
    if (this.closed) throw this.error;
    this.#onClose = onClose;
    this.#listen();
  }

  /**
   * Send a request and resolve with its answer, read with `shape`. Rejects with `BrokerError`, `TimedOut` or
   * `Unreachable`.
   */
  call(request, shape, timeoutS) {
    return new Promise((resolve, reject) => this.#ask(request, shape, timeoutS, resolve, reject));
  }

  /** Send a one-way message, with payload if it has one. Does nothing if the link has ended. */
  post(message, payload) {
    if (!this.closed) this.#socket.send(encodeMessage(message, payload));
  }

  /** End the link: every call that waits for an answer rejects with `UNREACHABLE`. */
  close(error = new Unreachable(`the link to ${this.url} is closed`)) {
    this.#end(error);
  }

  // --- how ---

  async #greet() {
    const timer = setTimeout(() => {
      this.#end(new Unreachable(`${this.url}: no connection within ${OPEN_TIMEOUT_S} s`));
    }, OPEN_TIMEOUT_S * 1000);
    try {
      await new Promise((resolve, reject) => {
        this.#onClose = () => reject(this.error);
        this.#socket.onopen = resolve;
      });
      this.#onClose = () => {};
      if (this.#socket.protocol !== SUBPROTOCOL) throw new Unreachable(`${this.url}: it does not speak ${SUBPROTOCOL}`);
      const hello = {
        ...{ op: "hello", version: VERSION, role: "client", node: "client", ...this.#hello },
        ...{ version_min: VERSION, version_max: VERSION, capabilities: ASKED },
      };
      this.peer = await this.call(hello, messages.welcome, 2 * OPEN_TIMEOUT_S);
      if (this.peer.version !== VERSION) {
        throw new ProtocolError(`the server speaks version ${this.peer.version}, not ${VERSION}`);
      }
    } catch (error) {
      this.#end(error);
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  #ask(request, shape, timeoutS, resolve, reject) {
    if (this.closed) {
      reject(new Unreachable(`the link to ${this.url} is closed`));
    } else if (this.peer && this.#pending.size >= this.peer.maxInFlight) {
      const why = `${this.#pending.size} requests wait already`;
      reject(new BrokerError(why, { code: "OVERLOADED" }));
    } else {
      const id = this.#nextId++;
      const late = () => {
        this.#pending.delete(id);
        reject(new TimedOut("no answer in time", { unknownOutcome: true }));
      };
      const timer = setTimeout(late, Math.min(timeoutS * 1000, 0x7fffffff));
      this.#pending.set(id, { shape, timer, resolve, reject, what: request.op });
      this.#socket.send(encodeMessage({ ...request, id }));
    }
  }

  #onMessage(data) {
    if (this.closed) return;
    this.#heardAt = now();
    try {
      if (!(data instanceof ArrayBuffer)) throw new ProtocolError("the gateway sent a text");
      this.#take(new Uint8Array(data));
    } catch (error) {
      if (!(error instanceof TidelogError)) throw error;
      this.#end(error);
    }
  }

  #take(data) {
    const [header, end] = decodePrefix(data, HEADER_ITEMS);
    if (header === null || typeof header !== "object") throw new ProtocolError("the header is no map");
    header.payload = end < data.length ? decodePrefix(data.subarray(end), 1)[0] : new Uint8Array();
    if (header.re === undefined) {
      const shape = Object.hasOwn(messages.NOTICES, header.op) && messages.NOTICES[header.op];
      if (shape) this.#onNotice(header.op, shape.read(header, header.op));
      return;
    }
    const pending = this.#pending.get(header.re);
    if (!pending) return; // it came too late
    this.#pending.delete(header.re);
    clearTimeout(pending.timer);
    try {
      if (header.error !== undefined) pending.reject(fromInfo(messages.errorInfo.read(header.error, "error")));
      else pending.resolve(pending.shape.read(header, `the answer to ${pending.what}`));
    } catch (error) {
      pending.reject(error);
      throw error;
    }
  }

  #listen() {
    const quiet = now() - this.#heardAt;
    if (quiet >= SILENCE_S / 3 && !this.#asked) {
      this.#asked = true;
      this.call({ op: "metadata" }, messages.metadataAnswer, (SILENCE_S * 2) / 3).then(
        () => (this.#asked = false),
        (error) => {
          this.#asked = false;
          if (error instanceof TimedOut) this.#end(new Unreachable(`${this.url} is silent`, { unknownOutcome: true }));
        },
      );
    }
    this.#silence.set(now() + SILENCE_S / 3);
  }

  #end(error) {
    if (this.closed) return;
    this.closed = true;
    this.error ??= error;
    this.#silence.clear();
    for (const { timer, reject } of this.#pending.values()) {
      clearTimeout(timer);
      reject(new Unreachable(this.error.message, { unknownOutcome: true }));
    }
    this.#pending.clear();
    const code = error instanceof ProtocolError ? PROTOCOL_FAULT : 1000;
    this.#socket.onclose = this.#socket.onmessage = this.#socket.onopen = null;
    this.#socket.close(code, this.error.message.slice(0, 30));
    this.#onClose();
  }
}

/** Return why no connection was opened, in words where the runtime's text (of OpenSSL, say) has none. */
function inWords(text) {
  if (/HTTP 426/.test(text)) return "the port speaks TLS: use wss://";
  return /wrong version number|packet length too long/.test(text) ? "TLS failed: is it a port without TLS (ws://)?" : text;
}

function whyClosed(url, event) {
  const reason = event.reason ? `: ${event.reason}` : "";
  return new Unreachable(`${url}: the connection ended (${event.code}${reason})`);
}

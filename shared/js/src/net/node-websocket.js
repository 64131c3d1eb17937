/**
 * A WebSocket class for Node before version 22, which has none: as much of the standard class as `link.js` uses, over
 * `node:http` and `node:https` (RFC 6455, without extensions).
 */

import { createHash, randomBytes } from "node:crypto";
import * as http from "node:http";
import * as https from "node:https";

const [CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG] = [0x0, 0x1, 0x2, 0x8, 0x9, 0xa];
const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/** Most bytes of a message. Gateways send less. */
const MAX_BYTES = 1 << 28;
/** Milliseconds that the other side has to end the connection after it was asked to. */
const CLOSE_MS = 3000;
const ENDED_ABNORMALLY = 1006;
const NO_CODE = 1005;
const PROTOCOL_ERROR = 1002;

export class WebSocket {
  onopen = null;
  /** Called with `{data}`: an `ArrayBuffer`, or a text. */
  onmessage = null;
  /** Called with `{message}` before `onclose` if the connection fails. */
  onerror = null;
  /** Called once with `{code, reason}` when the connection has ended. */
  onclose = null;
  binaryType = "arraybuffer";
  /** The subprotocol that the server has chosen; "" if none. */
  protocol = "";
  #request;
  #socket = null;
  #ended = false;
  #closing = false;
  #chunks = [];
  #received = 0;
  /** Bytes that the next frame has, as far as is known. */
  #needed = 2;
  /** The frames so far of a message that has several. */
  #parts = [];
  #partsBytes = 0;
  #kind = CONTINUATION;

  /** Begin to connect. Throws `SyntaxError` for a text that is no URL of a WebSocket. */
  constructor(url, protocol) {
    if (!URL.canParse(url) || !/^wss?:/i.test(url)) throw new SyntaxError(`${url} does not begin with ws:// or wss://`);
    const key = randomBytes(16).toString("base64");
    const headers = {
      Connection: "Upgrade",
      Upgrade: "websocket",
      "Sec-WebSocket-Version": "13",
      "Sec-WebSocket-Key": key,
      "Sec-WebSocket-Protocol": protocol,
    };
    const { request } = /^wss:/i.test(url) ? https : http;
    this.#request = request(url.replace(/^ws/i, "http"), { headers, agent: false });
    this.#request.on("upgrade", (response, socket, head) => this.#open(response, socket, head, key, protocol));
    this.#request.on("response", (response) => this.#fail(`the answer is HTTP ${response.statusCode}`));
    this.#request.on("error", (error) => this.#fail(error.message || error.code));
    this.#request.end();
  }

  /** Send a binary message. Does nothing before the connection is open and after it was closed. */
  send(data) {
    if (!this.#closing) this.#write(BINARY, data);
  }

  /** End the connection, with a code and a reason for the other side. */
  close(code, reason = "") {
    if (this.#closing || this.#ended) return;
    this.#closing = true;
    if (!this.#socket) {
      this.#fail("it was closed before it was open");
      return;
    }
    this.#sayClose(code, Buffer.from(reason));
  }

  #open(response, socket, head, key, protocol) {
    const { "sec-websocket-accept": accepted, "sec-websocket-extensions": extensions = "" } = response.headers;
    this.protocol = response.headers["sec-websocket-protocol"] ?? "";
    socket.on("error", (error) => this.#fail(error.message));
    socket.on("close", () => this.#fail(""));
    this.#socket = socket;
    if (accepted !== createHash("sha1").update(key + GUID).digest("base64")) this.#fail("the server does not speak WebSocket");
    else if (extensions) this.#fail(`the server uses extensions that nobody asked for: ${extensions}`);
    else if (!["", protocol].includes(this.protocol)) this.#fail(`the server speaks ${this.protocol}, not ${protocol}`);
    if (this.#ended) return;
    socket.setNoDelay(true);
    socket.on("data", (chunk) => this.#onData(chunk));
    this.onopen?.({});
    if (head.length) this.#onData(head);
  }

  // --- what comes ---

  #onData(chunk) {
    this.#chunks.push(chunk);
    this.#received += chunk.length;
    if (this.#received < this.#needed) return;
    const data = this.#chunks.length === 1 ? chunk : Buffer.concat(this.#chunks);
    let at = 0;
    while (!this.#ended) {
      const { start, end } = frameAt(data, at);
      this.#needed = end - at;
      if (this.#needed > MAX_BYTES) this.#refuse("a frame is too large");
      else if (end > data.length) break;
      else this.#onFrame(data[at], data[at + 1], data.subarray(start, end));
      at = end;
    }
    this.#chunks = [data.subarray(at)];
    this.#received = data.length - at;
  }

  #onFrame(first, second, payload) {
    const kind = first & 0x0f;
    const isLast = (first & 0x80) !== 0;
    if (first & 0x70 || second & 0x80) this.#refuse("a frame has a bit set that it must not have");
    else if (kind >= CLOSE && (!isLast || payload.length > 125)) this.#refuse("a control frame is not whole");
    else if (kind === PING) this.#write(PONG, payload);
    else if (kind === PONG) return;
    else if (kind === CLOSE) this.#onClose(payload);
    else if ((kind === CONTINUATION) !== (this.#kind !== CONTINUATION) || kind > BINARY) this.#refuse(`a frame of kind ${kind} is out of place`);
    else this.#onPart(kind || this.#kind, isLast, payload);
  }

  #onPart(kind, isLast, payload) {
    this.#parts.push(payload);
    this.#partsBytes += payload.length;
    this.#kind = kind;
    if (this.#partsBytes > MAX_BYTES) this.#refuse("a message is too large");
    else if (isLast) {
      const whole = this.#parts.length === 1 ? payload : Buffer.concat(this.#parts);
      [this.#parts, this.#partsBytes, this.#kind] = [[], 0, CONTINUATION];
      if (this.#closing) return;
      this.onmessage?.({ data: kind === TEXT ? whole.toString() : arrayBuffer(whole) });
    }
  }

  #onClose(payload) {
    const code = payload.length >= 2 ? payload.readUInt16BE(0) : NO_CODE;
    if (!this.#closing) this.#sayClose(code === NO_CODE ? undefined : code, Buffer.alloc(0));
    this.#closing = true;
    this.#end({ code, reason: payload.subarray(2).toString() });
  }

  /** End the connection because the other side breaks the rules. */
  #refuse(why) {
    if (!this.#closing) this.#sayClose(PROTOCOL_ERROR, Buffer.from(why));
    this.#closing = true;
    this.#fail(why);
  }

  /** End the connection without the other side; `message`: why, "" if it has just ended. */
  #fail(message) {
    if (this.#ended) return;
    if (message) this.onerror?.({ message });
    this.#end({ code: ENDED_ABNORMALLY, reason: "" });
    this.#request.destroy();
  }

  #end(event) {
    if (this.#ended) return;
    this.#ended = true;
    this.#socket?.end();
    this.#socket?.setTimeout(CLOSE_MS, () => this.#socket.destroy());
    this.onclose?.(event);
  }

  // --- what goes ---

  #sayClose(code, reason) {
    const payload = Buffer.alloc(code === undefined ? 0 : 2 + reason.length);
    if (code !== undefined) {
      payload.writeUInt16BE(code);
      reason.copy(payload, 2);
    }
    this.#write(CLOSE, payload);
    this.#socket.setTimeout(CLOSE_MS, () => this.#socket.destroy());
  }

  #write(kind, payload) {
    if (!this.#socket || this.#ended) return;
    const { length } = payload;
    const size = length < 126 ? 2 : length < 1 << 16 ? 4 : 10;
    const frame = Buffer.allocUnsafe(size + 4 + length);
    frame[0] = 0x80 | kind;
    frame[1] = 0x80 | (size === 2 ? length : size === 4 ? 126 : 127);
    if (size === 4) frame.writeUInt16BE(length, 2);
    if (size === 10) frame.writeBigUInt64BE(BigInt(length), 2);
    const mask = randomBytes(4);
    mask.copy(frame, size);
    for (let i = 0, to = size + 4; i < length; i++, to++) frame[to] = payload[i] ^ mask[i & 3];
    this.#socket.write(frame);
  }
}

/** Return where the payload of the frame at `at` starts and ends; if its head is not all there, where that ends. */
function frameAt(data, at) {
  const short = at + 1 < data.length ? data[at + 1] & 0x7f : 0;
  const start = at + (short < 126 ? 2 : short === 126 ? 4 : 10);
  if (short < 126) return { start, end: start + short };
  if (start > data.length) return { start, end: start };
  const length = short === 126 ? data.readUInt16BE(at + 2) : Number(data.readBigUInt64BE(at + 2));
  return { start, end: start + length };
}

/** Return the bytes as an `ArrayBuffer` of their own. */
function arrayBuffer(bytes) {
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
}

/** The WebSocket class for Node before version 22, against a server that writes frames byte by byte. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";
import { WebSocket } from "../../shared/js/src/net/node-websocket.js";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const ANSWER = { accept: (key) => createHash("sha1").update(key + GUID).digest("base64"), more: [], first: Buffer.alloc(0) };

/** Run `body(client, server)` over an open connection: `client.events` are the client's, `server.frame()` is what it sent. */
function overConnection(name, body, answer = {}) {
  test(name, async () => {
    const { accept, more, first } = { ...ANSWER, ...answer };
    const server = createServer((_, response) => response.writeHead(403).end());
    const sockets = [];
    server.on("upgrade", (request, socket) => {
      const lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"];
      lines.push(`Sec-WebSocket-Accept: ${accept(request.headers["sec-websocket-key"])}`, ...more, "", "");
      sockets.push(socket);
      if (answer.refuse) socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
      else socket.write(Buffer.concat([Buffer.from(lines.join("\r\n")), first]));
      server.emit("asked", request);
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const asked = once(server, "asked");
    const client = new WebSocket(`ws://127.0.0.1:${server.address().port}`, "tidelog.v1");
    const events = [];
    let told = () => {};
    for (const kind of ["open", "message", "error", "close"]) {
      client[`on${kind}`] = (event) => {
        events.push([kind, event.data ?? event.message ?? event.code]);
        told();
      };
    }
    const until = async (count) => {
      while (events.length < count) await new Promise((resolve) => (told = resolve));
      return events;
    };
    try {
      const [request] = await asked;
      await body({ client, until, socket: sockets[0], frames: received(sockets[0]), request });
    } finally {
      client.close(1000);
      for (const socket of sockets) socket.destroy();
      server.close();
    }
  });
}

/** Yield the frames that arrive at a socket, unmasked: `{first, isMasked, payload}`. */
async function* received(socket) {
  let data = Buffer.alloc(0);
  for await (const chunk of socket) {
    data = Buffer.concat([data, chunk]);
    for (;;) {
      const short = data.length > 1 ? data[1] & 0x7f : 0;
      const start = 2 + (short === 126 ? 2 : short === 127 ? 8 : 0) + 4;
      if (data.length < start) break;
      const length = short === 126 ? data.readUInt16BE(2) : short === 127 ? Number(data.readBigUInt64BE(2)) : short;
      if (data.length < start + length) break;
      const mask = data.subarray(start - 4, start);
      const payload = data.subarray(start, start + length).map((byte, i) => byte ^ mask[i & 3]);
      yield { first: data[0], isMasked: data[1] >= 0x80, payload: Buffer.from(payload) };
      data = data.subarray(start + length);
    }
  }
}

/** The bytes of a frame as servers send it, without a mask. */
function frame(first, payload) {
  const { length } = payload;
  const head = Buffer.alloc(length < 126 ? 2 : length < 1 << 16 ? 4 : 10);
  head[0] = first;
  head[1] = length < 126 ? length : length < 1 << 16 ? 126 : 127;
  if (head.length === 4) head.writeUInt16BE(length, 2);
  if (head.length === 10) head.writeBigUInt64BE(BigInt(length), 2);
  return Buffer.concat([head, payload]);
}

const bytes = (length) => Buffer.from(Uint8Array.from({ length }, (_, i) => i * 7));
const LENGTHS = [0, 1, 125, 126, 65535, 65536, 300000];

overConnection("it asks as RFC 6455 says", async ({ request, until }) => {
  await until(1);
  const { headers } = request;
  assert.deepEqual([headers.upgrade, headers["sec-websocket-version"], headers["sec-websocket-protocol"]], ["websocket", "13", "tidelog.v1"]);
  assert.equal(Buffer.from(headers["sec-websocket-key"], "base64").length, 16);
  assert.equal(headers.origin, undefined);
});

overConnection("messages of every length are sent, masked", async ({ client, until, frames }) => {
  await until(1);
  for (const length of LENGTHS) {
    client.send(new Uint8Array(bytes(length)));
    const { first, isMasked, payload } = (await frames.next()).value;
    assert.deepEqual([first, isMasked, Buffer.compare(payload, bytes(length))], [0x82, true, 0]);
  }
});

overConnection("messages of every length arrive, at once", async ({ socket, until }) => {
  socket.write(Buffer.concat(LENGTHS.map((length) => frame(0x82, bytes(length)))));
  const events = await until(1 + LENGTHS.length);
  for (const [i, length] of LENGTHS.entries()) {
    const [kind, data] = events[1 + i];
    assert.ok(kind === "message" && data instanceof ArrayBuffer);
    assert.equal(Buffer.compare(Buffer.from(data), bytes(length)), 0);
  }
});

overConnection(
  "messages arrive byte by byte, in frames, with a ping between them, and behind the answer",
  async ({ socket, until, frames }) => {
    socket.setNoDelay(true);
    const parts = [frame(0x02, bytes(2)), frame(0x89, bytes(3)), frame(0x00, bytes(200)), frame(0x80, bytes(1)), frame(0x81, Buffer.from("é"))];
    for (const byte of Buffer.concat(parts)) await new Promise((resolve) => socket.write(Buffer.of(byte), resolve));
    const [open, first, whole, text] = await until(4);
    assert.deepEqual([open[0], Buffer.from(first[1]).length, text[1]], ["open", 5, "é"]);
    assert.deepEqual(Buffer.from(whole[1]), Buffer.concat([bytes(2), bytes(200), bytes(1)]));
    const pong = (await frames.next()).value;
    assert.deepEqual([pong.first, pong.isMasked, pong.payload], [0x8a, true, bytes(3)]);
  },
  { first: frame(0x82, bytes(5)) },
);

overConnection("the other side ends it", async ({ socket, until, frames }) => {
  socket.write(frame(0x88, Buffer.concat([Buffer.of(0x03, 0xe9), Buffer.from("going away")])));
  assert.deepEqual((await until(2))[1], ["close", 1001]);
  assert.deepEqual((await frames.next()).value.payload, Buffer.of(0x03, 0xe9));
  assert.equal((await frames.next()).done, true, "and the connection is ended");
});

overConnection("this side ends it, and hears of it when the other has answered", async ({ client, socket, until, frames }) => {
  await until(1);
  client.close(4002, "no more");
  client.send(bytes(1));
  const { first, payload } = (await frames.next()).value;
  assert.deepEqual([first, payload.readUInt16BE(0), payload.subarray(2).toString()], [0x88, 4002, "no more"]);
  socket.write(Buffer.concat([frame(0x82, bytes(1)), frame(0x88, payload.subarray(0, 2))]));
  assert.deepEqual((await until(2))[1], ["close", 4002]);
});

overConnection("the connection breaks", async ({ socket, until }) => {
  await until(1);
  socket.destroy();
  assert.deepEqual((await until(2)).at(-1), ["close", 1006]);
});

for (const [what, sent] of Object.entries({
  "a masked frame": Buffer.concat([Buffer.of(0x82, 0x81, 1, 2, 3, 4), bytes(1)]),
  "a frame of an extension": frame(0xc2, bytes(1)),
  "a frame of an unknown kind": frame(0x83, bytes(1)),
  "a continuation of nothing": frame(0x80, bytes(1)),
  "a message within another": Buffer.concat([frame(0x02, bytes(1)), frame(0x82, bytes(1))]),
  "half a ping": frame(0x09, bytes(1)),
  "a long ping": frame(0x89, bytes(126)),
  "a frame that is too large": Buffer.of(0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0),
})) {
  overConnection(`${what} ends the connection`, async ({ socket, until, frames }) => {
    socket.write(sent);
    const [, error, close] = await until(3);
    assert.deepEqual([error[0], close], ["error", ["close", 1006]]);
    assert.equal((await frames.next()).value.payload.readUInt16BE(0), 1002);
  });
}

for (const [what, answer] of Object.entries({
  "a wrong accept": { accept: () => "c29tZXRoaW5nIGVsc2U=" },
  "an extension": { more: ["Sec-WebSocket-Extensions: permessage-deflate"] },
  "another subprotocol": { more: ["Sec-WebSocket-Protocol: chat"] },
  "a refusal": { refuse: true },
})) {
  overConnection(`${what} in the answer is an error`, async ({ until }) => {
    const [error, close] = await until(2);
    assert.deepEqual([error[0], close], ["error", ["close", 1006]]);
    if (what === "a refusal") assert.equal(error[1], "the answer is HTTP 403");
  }, answer);
}

test("nobody listens there", async () => {
  const client = new WebSocket("ws://127.0.0.1:1", "tidelog.v1");
  const { message } = await new Promise((resolve) => (client.onerror = resolve));
  assert.match(message, /ECONNREFUSED/);
});

test("a text that is no URL of a WebSocket", () => {
  for (const url of ["", "127.0.0.1:9292", "http://127.0.0.1", "ws://"]) assert.throws(() => new WebSocket(url, "tidelog.v1"), SyntaxError);
});

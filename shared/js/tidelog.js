/**
 * Tidelog's client for browsers and Node: one ES module without dependencies.
 *
 *     import * as tidelog from "tidelog";
 *     const log = await tidelog.connect("ws://127.0.0.1:9292");
 *     const producer = await log.producer("orders");
 *     const ack = await producer.send("...", {key: "k"});
 *     await producer.close();
 *     for await (const record of log.consume("orders", {start: "earliest"})) { ... }
 *     await log.close();
 *
 * Names, options and behaviour are those of the Python client, in camelCase. docs/javascript.md tells more.
 */

import { now } from "./src/clock.js";
import { Connection } from "./src/net/connection.js";
import { check } from "./src/errors.js";
import { Log } from "./src/client/log.js";
import { unknown } from "./src/client/options.js";

export { CODES } from "./src/wire/error-codes.js";
export {
  BrokerError,
  Closed,
  ConfigError,
  CorruptBatch,
  DeliveryFailed,
  ProtocolError,
  TidelogError,
  TimedOut,
  Unreachable,
  UnreadableBatch,
} from "./src/errors.js";
export { BackwardConsumer } from "./src/client/backward-consumer.js";
export { Consumer } from "./src/client/consumer.js";
export { GroupConsumer } from "./src/client/group-consumer.js";
export { Log } from "./src/client/log.js";
export { Pending, Producer } from "./src/client/producer.js";
export { partitionOf } from "./src/core/partitioner.js";

const DEFAULT_URL = "ws://127.0.0.1:9292";
const OPTIONS = {
  connectTimeoutS: 10,
  requestTimeoutS: 30,
  token: "",
  discover: true,
  operator: false,
  codecs: {},
  WebSocket: undefined,
};

/**
 * Connect to any of the gateways, and to another one when it is lost, and resolve with a `Log`. Times in seconds;
 * `requestTimeoutS` is how long requests wait, with reconnections. `token`: the bearer token that identifies this
 * client. `discover`: go on at other gateways, too, which the cluster names, if those of `urls` cannot be reached
 * (docs/protocol.md). `operator`: for programs that look after the cluster; a gateway that is full may let them in all
 * the same (docs/security.md). `codecs`: `{zstd: {decompress, compress}}`, for topics that are compressed with it.
 * `WebSocket`: a class to use instead of the platform's.
 *
 * Rejects with `Unreachable` if no gateway can be reached within `connectTimeoutS`, with `UNAUTHENTICATED` if the
 * token is invalid or missing, with `ConfigError` for wrong options.
 */
export async function connect(urls = DEFAULT_URL, options = {}) {
  const gateways = typeof urls === "string" ? [urls] : [...urls];
  const { connectTimeoutS, codecs, WebSocket, ...given } = { ...OPTIONS, ...options };
  check({
    ...unknown(options, OPTIONS),
    "no gateway URL is given": !gateways.length,
    "connectTimeoutS must be above 0": !(connectTimeoutS > 0),
    "requestTimeoutS must be above 0": !(given.requestTimeoutS > 0),
  });
  const connection = new Connection(gateways, { ...given, WebSocket: WebSocket ?? (await findWebSocket()) });
  const log = new Log(connection, { lz4: {}, ...codecs });
  try {
    await connection.waitUp(now() + connectTimeoutS);
  } catch (error) {
    await log.close();
    throw error;
  }
  return log;
}

/** Resolve with the platform's WebSocket class; Node before version 22 has none, and gets that of this package. */
async function findWebSocket() {
  return globalThis.WebSocket ?? (await import("./src/net/node-websocket.js")).WebSocket;
}

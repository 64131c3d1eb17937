/** What the JavaScript drivers share: commands of the suite on one side, the library's objects on the other. */

import * as tidelog from "../../shared/js/tidelog.js";

/** An object that does commands: `answer(command)` resolves to the line to be written. */
export class Commands {
  #options;
  #features;
  #logs = new Map();
  #producers = new Map();
  #consumers = new Map();

  /** `options` are given to every `connect`; `features`: see README.md. */
  constructor({ options = {}, features = [] } = {}) {
    this.#options = options;
    this.#features = features;
  }

  async answer(command) {
    try {
      return { id: command.id, ok: await this[command.do](command) };
    } catch (error) {
      return { id: command.id, error: refused(error) };
    }
  }

  async hello() {
    return { features: this.#features };
  }

  async connect({ log, urls, connect_timeout_s: connectTimeoutS, token }) {
    const patient = { requestTimeoutS: 60 }; // a busy machine may be slow to answer
    const options = { ...patient, ...this.#options, ...given({ connectTimeoutS, token }) };
    this.#logs.set(log, await tidelog.connect(urls, options));
    return {};
  }

  async close({ log }) {
    const open = this.#logs.get(log);
    this.#logs.delete(log);
    await open.close();
    return {};
  }

  async create_topic({ log, topic, partitions, replication_factor: replicationFactor, config, exist_ok: existOk }) {
    return described(await this.#logs.get(log).createTopic(topic, given({ partitions, replicationFactor, config, existOk })));
  }

  async delete_topic({ log, topic }) {
    await this.#logs.get(log).deleteTopic(topic);
    return {};
  }

  async topics({ log }) {
    return { topics: (await this.#logs.get(log).topics()).map(({ name }) => name) };
  }

  async describe({ log, topic }) {
    return described(await this.#logs.get(log).describe(topic, { offsets: true }));
  }

  async list_offset({ log, topic, partition, at }) {
    const { offset, leaderEpoch } = await this.#logs.get(log).listOffset(topic, partition, placeOf(at));
    return { offset, leader_epoch: leaderEpoch };
  }

  async create_token({ log, principal, lifetime_s: lifetimeS }) {
    return { token: await this.#logs.get(log).createToken(principal, given({ lifetimeS })) };
  }

  async rotate_token({ log, token_id: tokenId, grace_s: graceS }) {
    return { token: await this.#logs.get(log).rotateToken(tokenId, given({ graceS })) };
  }

  async revoke_token({ log, token_id: tokenId }) {
    await this.#logs.get(log).revokeToken(tokenId);
    return {};
  }

  async revoke_tokens_of({ log, principal }) {
    await this.#logs.get(log).revokeTokensOf(principal);
    return {};
  }

  async rotate_ticket_keys({ log }) {
    await this.#logs.get(log).rotateTicketKeys();
    return {};
  }

  async alter_acls({ log, add, remove }) {
    await this.#logs.get(log).alterAcls(given({ add, remove }));
    return {};
  }

  async alter_quotas({ log, quotas }) {
    await this.#logs.get(log).alterQuotas(quotas.map(camel));
    return {};
  }

  async access({ log }) {
    const { tokens, acls, quotas } = await this.#logs.get(log).access();
    return {
      tokens: tokens.map(({ tokenId, principal }) => ({ token_id: tokenId, principal })),
      acls,
      quotas: quotas.map(({ principal, bytesInS, bytesOutS, requestsS, connections }) => {
        return { principal, bytes_in_s: bytesInS, bytes_out_s: bytesOutS, requests_s: requestsS, connections };
      }),
    };
  }

  async open_producer({ log, producer, topic, options = {} }) {
    this.#producers.set(producer, { open: await this.#logs.get(log).producer(topic, camel(options)), submitted: [] });
    return {};
  }

  async send({ producer, record }) {
    const [value, options] = sending(record);
    return acked(await this.#producers.get(producer).open.send(value, options));
  }

  async submit({ producer, records }) {
    const { open, submitted } = this.#producers.get(producer);
    for (const record of records) {
      const [value, options] = sending(record);
      submitted.push(await open.submit(value, options));
    }
    return {};
  }

  async flush({ producer }) {
    const { open, submitted } = this.#producers.get(producer);
    await open.flush();
    const outcomes = [];
    for (const pending of submitted.splice(0)) {
      try {
        outcomes.push({ ack: acked(await pending.wait()) });
      } catch (error) {
        outcomes.push({ error: refused(error) });
      }
    }
    return { outcomes };
  }

  async close_producer({ producer }) {
    const { open } = this.#producers.get(producer);
    this.#producers.delete(producer);
    await open.close();
    return {};
  }

  async open_consumer({ log, consumer, topic, start, end, partitions, options = {} }) {
    const reading = given({ start: placeOf(start), end: placeOf(end), partitions });
    const open = this.#logs.get(log).consume(topic, { ...reading, ...camel(options) });
    await open.open();
    this.#consumers.set(consumer, { open, records: open[Symbol.asyncIterator]() });
    return {};
  }

  async open_member({ log, consumer, topics, group, start, options = {} }) {
    const open = this.#logs.get(log).consume(topics, { group, ...given({ start: placeOf(start) }), ...camel(options) });
    await open.open();
    this.#consumers.set(consumer, { open, records: open[Symbol.asyncIterator]() });
    return {};
  }

  async commit({ consumer }) {
    await this.#consumers.get(consumer).open.commit();
    return {};
  }

  async pause({ consumer, partitions }) {
    await this.#consumers.get(consumer).open.pause(...partitions.map(share));
    return {};
  }

  async resume({ consumer, partitions }) {
    await this.#consumers.get(consumer).open.resume(...partitions.map(share));
    return {};
  }

  async seek({ consumer, at, partitions = [], positions }) {
    const place = positions?.map(([topic, partition, [leaderEpoch, offset]]) => ({ topic, partition, leaderEpoch, offset }));
    await this.#consumers.get(consumer).open.seek(place ?? placeOf(at), ...partitions.map(share));
    return {};
  }

  async assignment({ consumer }) {
    const { assignment } = this.#consumers.get(consumer).open;
    return { assignment: assignment.map(({ topic, partition }) => [topic, partition]) };
  }

  async describe_group({ log, group }) {
    const { state, coordinator, members, positions } = await this.#logs.get(log).describeGroup(group);
    const told = positions.map(({ topicId, partition, offset, leaderEpoch }) => [topicId, partition, offset, leaderEpoch]);
    return { state, coordinator, members: members.length, positions: told };
  }

  async next({ consumer, count }) {
    const { records } = this.#consumers.get(consumer);
    const found = [];
    while (found.length < count) {
      const { done, value } = await records.next();
      if (done) return { records: found, end: true };
      found.push(received(value));
    }
    return { records: found, end: false };
  }

  async positions({ consumer }) {
    const { positions } = this.#consumers.get(consumer).open;
    const told = [...positions].map(([partition, { leaderEpoch, offset }]) => [partition, [leaderEpoch, offset]]);
    return { positions: Object.fromEntries(told) };
  }

  async close_consumer({ consumer }) {
    const { open } = this.#consumers.get(consumer);
    this.#consumers.delete(consumer);
    await open.close();
    return {};
  }
}

function share([topic, partition]) {
  return { topic, partition };
}

function bytesOf(text) {
  return text === null ? null : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function textOf(bytes) {
  if (bytes === null) return null;
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

function placeOf(place) {
  if (place === null || typeof place !== "object") return place ?? undefined;
  if ("timestamp_ms" in place) return new Date(place.timestamp_ms);
  const positions = Object.entries(place.positions);
  return new Map(positions.map(([partition, [leaderEpoch, offset]]) => [Number(partition), { leaderEpoch, offset }]));
}

function sending({ value, key, headers, partition, timestamp_ms: timestampMs, expected_offset: expectedOffset }) {
  const pairs = headers?.map(([name, content]) => [name, bytesOf(content)]);
  const options = { key: key === undefined ? undefined : bytesOf(key), headers: pairs, partition, timestampMs, expectedOffset };
  return [bytesOf(value), given(options)];
}

function described({ name, topicId, partitions }) {
  return {
    name,
    topic_id: topicId,
    partitions: partitions.map(({ partition, leader, leaderEpoch, isr, replicas, logStart, highWatermark }) => {
      return { partition, leader, leader_epoch: leaderEpoch, isr, replicas, log_start: logStart, high_watermark: highWatermark };
    }),
  };
}

function acked({ partition, offset, leaderEpoch, durability }) {
  return { partition, offset, leader_epoch: leaderEpoch, durability };
}

function received({ partition, offset, leaderEpoch, timestampMs, key, value, headers }) {
  return {
    ...{ partition, offset, leader_epoch: leaderEpoch, timestamp_ms: timestampMs },
    ...{ key: textOf(key), value: textOf(value), headers: headers.map(([name, content]) => [name, textOf(content)]) },
  };
}

/** An error as the suite knows it. What is neither the library's nor a wrong argument is a bug: it ends the driver. */
function refused(error) {
  const { message } = error;
  if (error instanceof TypeError || error instanceof RangeError) {
    return { code: "INVALID_ARGUMENT", message, retriable: false, unknown_outcome: false };
  }
  if (!(error instanceof tidelog.TidelogError)) throw error;
  const { code, retriable, unknownOutcome, detail, failed } = error;
  return { code, message, retriable, unknown_outcome: unknownOutcome, detail, ...given({ failed }) };
}

/** Without what was not given. */
function given(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null));
}

/** Options by the names that they have here. */
function camel(options) {
  const entries = Object.entries(given(options));
  return Object.fromEntries(entries.map(([name, value]) => [name.replace(/_(.)/g, (_, letter) => letter.toUpperCase()), value]));
}

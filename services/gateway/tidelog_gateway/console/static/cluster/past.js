/**
 * From records of the timeline to the cluster as it was (docs/timeline.md): records go in in order, the state comes out.
 * The same rules as `tidelog.timeline.replay`, which the tests hold it against. What is in it is never changed, only
 * replaced: so a copy is cheap, and `History` keeps many.
 */

/** The cluster after the records that were taken. `complete`: nothing is missing. */
export class Past {
  event = 0;
  timeMs = 0;
  complete = true;
  /** By topic id: `{topicId, name, config, partitions}`, the last a Map by number. */
  topics = new Map();
  servers = new Map();
  controllers = new Map();
  active = "";
  term = 0;
  #frame = null;
  #parts = 0;

  copy() {
    const made = Object.assign(new Past(), this);
    made.topics = new Map([...this.topics].map(([id, topic]) => [id, { ...topic, partitions: new Map(topic.partitions) }]));
    made.servers = new Map(this.servers);
    made.controllers = new Map(this.controllers);
    return made;
  }

  /** The next record. A repeated event changes nothing. */
  take(record) {
    if (isRepeat(record, this.event)) return;
    if (record.type === "keyframe") {
      this.#takeFrame(record);
      return;
    }
    this.#frame = null;
    if (record.type === "event") this.#takeEvent(record);
    if (record.type === "gap") {
      this.complete = false;
      this.#moveOn(record);
    }
  }

  #moveOn(record) {
    this.event = record.event;
    this.timeMs = record.time_ms;
  }

  #takeEvent(record) {
    if (record.event !== this.event + 1) this.complete = false;
    this.#moveOn(record);
    const { after } = record;
    if ("partition" in record) this.#topic(record).partitions.set(record.partition, after);
    else if ("topic" in record && after === null) this.topics.delete(record.topic_id);
    else if ("topic" in record) this.#topic(record).config = after;
    else if ("server" in record) put(this.servers, record.server, after);
    else if (record.kind === "controller_active") {
      this.active = record.controller;
      this.term = Number(record.evidence.term);
    } else if ("controller" in record) put(this.controllers, record.controller, after);
  }

  #topic({ topic_id: topicId, topic: name }) {
    if (!this.topics.has(topicId)) this.topics.set(topicId, { topicId, name, config: {}, partitions: new Map() });
    return this.topics.get(topicId);
  }

  /** A part of a keyframe; with the last one everything is as the keyframe says. */
  #takeFrame(record) {
    if (record.part === 1) {
      this.#frame = new Past();
      this.#parts = 0;
      for (const server of record.servers) this.#frame.servers.set(server.node, server);
      for (const controller of record.controllers) this.#frame.controllers.set(controller.node, controller);
      this.#frame.active = record.active;
      this.#frame.term = record.term;
    }
    const frame = this.#frame;
    if (!frame || record.part !== this.#parts + 1) {
      this.#frame = null;
      return;
    }
    this.#parts += 1;
    for (const told of record.topics) {
      const topic = frame.#topic(told);
      topic.config = told.config;
      told.partitions.forEach((state, i) => topic.partitions.set(told.first + i, state));
    }
    if (this.#parts < record.parts) return;
    const { topics, servers, controllers, active, term } = frame;
    Object.assign(this, { topics, servers, controllers, active, term, complete: true });
    this.#moveOn(record);
    this.#frame = null;
  }
}

/** Whether an event already stands before: the records before it have reached the number `event`. */
function isRepeat(record, event) {
  return record.type === "event" && record.event <= event;
}

function put(things, name, after) {
  if (after === null) things.delete(name);
  else things.set(name, after);
}

const COPY_EVERY = 128;

/** Records of the timeline in order, and the cluster after any of them. */
export class History {
  /** How many records there are. */
  length = 0;
  /** What happened and what was refused, in order: `{record, end}`, where `end` counts the records up to it. */
  events = [];
  #records = [];
  /** `[records that are in it, Past]`, ascending. */
  #copies = [[0, new Past()]];
  #last = new Past();

  /** The next record. A repeated event is left out. */
  add(record) {
    if (isRepeat(record, this.#last.event)) return;
    this.#records.push(record);
    this.length += 1;
    if (record.type !== "keyframe") this.events.push({ record, end: this.length });
    this.#last.take(record);
    const amid = record.type === "keyframe" && record.part < record.parts;
    if (!amid && this.length >= this.#copies.at(-1)[0] + COPY_EVERY) this.#copies.push([this.length, this.#last.copy()]);
  }

  /** The cluster after so many records. */
  after(end) {
    const [from, copy] = this.#copies.findLast(([upTo]) => upTo <= end);
    const past = copy.copy();
    for (const record of this.#records.slice(from, end)) past.take(record);
    return past;
  }

  /** How many of the events were at that time, ms since 1970, or before. */
  countUntil(timeMs) {
    return this.events.findLastIndex(({ record }) => record.time_ms <= timeMs) + 1;
  }
}

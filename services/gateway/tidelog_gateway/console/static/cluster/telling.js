/** The timeline as it is read from the cluster: from a keyframe some way back, and then whatever happens. */

import { decodeCbor } from "../records/decode.js";
import { History } from "./past.js";

const TOPIC = "__timeline";
/** So many of the newest records are read at first, and what leads to them from a keyframe. */
const RECORDS = 2000;
const FORMAT = 1;

export class Telling {
  history = new History();
  /** `loading`, `following`, or why there is none: `absent`, `forbidden`, `broken`. */
  phase = "loading";
  #onChange;
  #consumer = null;

  /** `onChange(caughtUp)` is called when there are new records. */
  constructor(onChange) {
    this.#onChange = onChange;
  }

  /** Follow it until the client is closed. */
  async follow(log) {
    this.history = new History();
    this.phase = "loading";
    try {
      await this.#follow(log);
    } catch (error) {
      this.phase = { UNKNOWN_TOPIC: "absent", FORBIDDEN: "forbidden" }[error.code] ?? "broken";
    } finally {
      await this.#consumer?.close();
      this.#onChange(false);
    }
  }

  /** Begin again if it was not there, or could not be read, and the cluster has it; for whenever the cluster changes. */
  async again(log, cluster) {
    const isThere = cluster?.topics.some(({ name }) => name === TOPIC);
    if (log && isThere && (this.phase === "absent" || this.phase === "broken")) await this.follow(log);
  }

  async #follow(log) {
    const topic = await log.describe(TOPIC);
    const at = async (where) => (await log.listOffsets(topic, where, [0])).get(0).offset;
    const earliest = await at("earliest");
    const latest = await at("latest");
    const start = await this.#keyframeBefore(log, earliest, Math.max(earliest, latest - RECORDS));
    this.#consumer = log.consume(TOPIC, { start });
    if (start >= latest) this.#caughtUp();
    for await (const record of this.#consumer) {
      const told = decode(record.value);
      if (told) this.history.add(told);
      if (record.offset + 1 >= latest) this.#caughtUp();
    }
  }

  #caughtUp() {
    this.phase = "following";
    this.#onChange(true);
  }

  /** Where to begin so that all is known at `offset`: the record there names a keyframe. */
  async #keyframeBefore(log, earliest, offset) {
    if (offset <= earliest) return earliest;
    for await (const record of log.consume(TOPIC, { start: offset, end: offset + 1 })) {
      const frame = decode(record.value)?.keyframe;
      return frame && frame[0] >= earliest ? frame[0] : earliest;
    }
    return earliest;
  }
}

function decode(value) {
  const record = decodeCbor(value);
  return record.format <= FORMAT ? record : null;
}

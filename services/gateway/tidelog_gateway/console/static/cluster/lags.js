/** How far consumer groups are behind: their committed offsets, beside the ends of the partitions. */

/** Groups about which requests are on the way at one time. */
const AT_ONCE = 4;
/** Of the groups that are not shown so many are asked for each time. */
const OTHERS = 10;

export class Lags {
  /** By name what was found of a group last, see `of`; what was found longest ago comes first. */
  #found = new Map();

  /**
   * Ask for the groups `shown`, for a few of the `others`, those that were asked for longest ago, and for the ends of each
   * topic that they read once. `topics`: those of the cluster. Groups that are in neither list are forgotten.
   * `onChange()` is called after each answer about a group that was not known.
   */
  async look(log, topics, shown, others, onChange) {
    const known = new Set([...shown, ...others]);
    for (const group of this.#found.keys()) if (!known.has(group)) this.#found.delete(group);
    const age = new Map([...this.#found.keys()].map((group, i) => [group, i]));
    const longest = [...others].sort((a, b) => (age.get(a) ?? -1) - (age.get(b) ?? -1)).slice(0, OTHERS);
    const named = new Map(topics.map(({ topicId, name }) => [topicId, name]));
    const ends = new Map();
    const endsOf = (topicId) => {
      if (!ends.has(topicId)) ends.set(topicId, named.has(topicId) ? endsIn(log, named.get(topicId)) : new Map());
      return ends.get(topicId);
    };
    const waiting = [...shown, ...longest];
    const ask = async () => {
      for (let group; (group = waiting.shift()) !== undefined; ) {
        const isNew = !this.#found.has(group);
        const found = await progress(log, group, named, endsOf).catch((error) => ({ error, lag: 0, whole: false }));
        this.#found.delete(group);
        this.#found.set(group, found);
        if (isNew) onChange();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, ask));
  }

  /**
   * Return `{group, partitions, lag, whole}` of a group, or `{error}`; undefined if it was not asked for yet. `group` is
   * the answer of `describeGroup`. `partitions` are those with a committed offset or an owner, the largest lag first:
   * `{topic, topicId, partition, offset, end, lag, member, committedMs}`, undefined where it is not known. `lag` is the
   * sum of what is known, and `whole` says that all is.
   */
  of(group) {
    return this.#found.get(group);
  }
}

async function progress(log, name, named, endsOf) {
  const group = await log.describeGroup(name);
  const found = new Map();
  const at = (topicId, partition) => {
    const key = `${topicId}/${partition}`;
    if (!found.has(key)) found.set(key, { topic: named.get(topicId) ?? topicId, topicId, partition });
    return found.get(key);
  };
  for (const { topicId, partition, offset, committedMs } of group.positions) Object.assign(at(topicId, partition), { offset, committedMs });
  for (const { member, instance, assignment, leaving } of group.members) {
    for (const { topicId, partitions } of [...assignment, ...leaving]) for (const one of partitions) at(topicId, one).member = instance || member;
  }
  const partitions = [...found.values()];
  for (const one of partitions) {
    one.end = (await endsOf(one.topicId)).get(one.partition);
    one.lag = one.end === undefined || one.offset === undefined ? undefined : Math.max(0, one.end - one.offset);
  }
  partitions.sort((a, b) => (b.lag ?? -1) - (a.lag ?? -1) || a.topic.localeCompare(b.topic) || a.partition - b.partition);
  const lag = partitions.reduce((sum, one) => sum + (one.lag ?? 0), 0);
  return { group, partitions, lag, whole: partitions.every((one) => one.lag !== undefined) };
}

/** By partition the high watermark; none of those whose leader does not answer. */
async function endsIn(log, topic) {
  const { partitions } = await log.describe(topic, { offsets: true }).catch(() => ({ partitions: [] }));
  return new Map(partitions.filter(({ highWatermark }) => highWatermark >= 0).map((one) => [one.partition, one.highWatermark]));
}

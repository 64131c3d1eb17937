/** What a replica of each partition weighs when the load is evened out: nothing but itself, its bytes, or its traffic. */

/** By what a rebalance evens out: the words for it, and the unit of the weights. */
export const GOALS = {
  count: { words: "numbers of replicas", unit: "" },
  bytes: { words: "bytes on the disks", unit: "B" },
  traffic: { words: "bytes per second that are written now", unit: "B/s" },
};
/** Traffic is measured for so long. */
const LOOK_MS = 3000;

/**
 * Resolve with the weights of all partitions, `{topic, partition, weight}`, by one of `GOALS`; `count`: none, since
 * each replica then weighs the same. A partition whose leader does not answer has no weight.
 */
export async function weigh(log, by) {
  if (by === "count") return [];
  const names = (await log.topics()).map(({ name }) => name);
  const before = await describeAll(log, names);
  if (by === "bytes") return sizes(before);
  const began = performance.now();
  await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  return rates(before, await describeAll(log, names), (performance.now() - began) / 1000);
}

async function describeAll(log, names) {
  const found = [];
  for (const name of names) found.push(await log.describe(name, { offsets: true }));
  return found;
}

/** Bytes of the leader's copy. */
export function sizes(topics) {
  return weights(topics, ({ bytes }) => bytes);
}

/** Bytes per second between two looks: the records that came, each of the average size of its log. */
export function rates(before, after, seconds) {
  const ends = new Map(before.flatMap(({ topicId, partitions }) => partitions.map((one) => [`${topicId}/${one.partition}`, one.highWatermark])));
  return weights(after, ({ partition, bytes, logStart, highWatermark }, topicId) => {
    const end = ends.get(`${topicId}/${partition}`) ?? -1;
    return end >= 0 && highWatermark > end ? ((highWatermark - end) * bytes) / (highWatermark - logStart) / seconds : 0;
  });
}

function weights(topics, of) {
  return topics
    .flatMap(({ name, topicId, partitions }) => partitions.map((one) => ({ topic: name, partition: one.partition, weight: Math.round(of(one, topicId)) })))
    .filter(({ weight }) => weight > 0);
}

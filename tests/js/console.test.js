/** The console's parts that need no page: the past from the timeline, the cluster in one shape, bytes, plots. */

import assert from "node:assert/strict";
import test from "node:test";
import { health, liveCluster, pastCluster, worstFirst } from "../../services/gateway/tidelog_gateway/console/static/cluster/cluster.js";
import { Alerts, alertsIn } from "../../services/gateway/tidelog_gateway/console/static/cluster/alerts.js";
import { ALERT_RULES } from "../../services/gateway/tidelog_gateway/console/static/cluster/alert-rules.js";
import { decodeCbor, show } from "../../services/gateway/tidelog_gateway/console/static/records/decode.js";
import { Flows } from "../../services/gateway/tidelog_gateway/console/static/cluster/flows.js";
import { matcher, NO_FILTERS, parsePath } from "../../services/gateway/tidelog_gateway/console/static/records/filters.js";
import { optionsOf, Search } from "../../services/gateway/tidelog_gateway/console/static/records/finding.js";
import { clock, duration, short } from "../../services/gateway/tidelog_gateway/console/static/page/format.js";
import { linksOf } from "../../services/gateway/tidelog_gateway/console/static/cluster/links.js";
import { byLabel, grownBy, parse, quantile, rate, total } from "../../services/gateway/tidelog_gateway/console/static/cluster/measures.js";
import { lineOf } from "../../services/gateway/tidelog_gateway/console/static/records/ndjson.js";
import { History, Past } from "../../services/gateway/tidelog_gateway/console/static/cluster/past.js";
import { copiesOf, stepsOf } from "../../services/gateway/tidelog_gateway/console/static/panels/partition-administration.js";
import { PlayPanel } from "../../services/gateway/tidelog_gateway/console/static/panels/play.js";
import { ceiling, Series } from "../../services/gateway/tidelog_gateway/console/static/page/plot.js";
import { Sizes } from "../../services/gateway/tidelog_gateway/console/static/cluster/sizes.js";
import { changesOf } from "../../services/gateway/tidelog_gateway/console/static/panels/topic-administration.js";
import { levelOf, matching } from "../../services/gateway/tidelog_gateway/console/static/panels/timeline.js";
import { epochsOf, windowOf } from "../../services/gateway/tidelog_gateway/console/static/cluster/tracks.js";
import { incidentsOf, summaryOf } from "../../services/gateway/tidelog_gateway/console/static/cluster/incidents.js";
import { bytesOf, listOf, pairsOf, partitionsOf } from "../../services/gateway/tidelog_gateway/console/static/page/typed.js";
import { followQuorum } from "../../services/gateway/tidelog_gateway/console/static/cluster/quorum.js";
import { rates, sizes } from "../../services/gateway/tidelog_gateway/console/static/cluster/weights.js";
import * as quantities from "../../services/gateway/tidelog_gateway/console/static/page/quantities.js";
import { decide, lostRights } from "../../services/gateway/tidelog_gateway/console/static/cluster/rules.js";
import { Lags } from "../../services/gateway/tidelog_gateway/console/static/cluster/lags.js";
import { Telling } from "../../services/gateway/tidelog_gateway/console/static/cluster/telling.js";
import { decompress } from "../../services/gateway/tidelog_gateway/console/static/records/zstd.js";
import { decodeBatch } from "../../shared/js/src/wire/batch.js";
import { fromHex, vectors } from "./vectors.js";

const RECORDS = vectors.pasts.map(({ hex }) => decodeCbor(fromHex(hex)));

/** As `tidelog.timeline.replay.Past.image` has it. */
function imageOf(past) {
  const topics = [...past.topics.values()].map(({ topicId, name, config, partitions }) => [topicId, [name, config, Object.fromEntries(partitions)]]);
  const { event, active, term, servers, controllers } = past;
  const image = { event, active, term, servers: Object.fromEntries(servers), controllers: Object.fromEntries(controllers), topics: Object.fromEntries(topics) };
  return JSON.parse(JSON.stringify(image));
}

test("the past is rebuilt as the Python client does", () => {
  const past = new Past();
  for (const [i, { image, complete }] of vectors.pasts.entries()) {
    past.take(RECORDS[i]);
    assert.deepEqual([i, imageOf(past), past.complete], [i, image, complete]);
  }
});

test("any moment can be gone to, in any order", () => {
  const history = new History();
  const records = Array.from({ length: 20 }, (_, round) => RECORDS.map((record) => ({ ...record, event: record.event + 1000 * round }))).flat();
  for (const record of records) history.add(record);
  const straight = new Past();
  const images = [];
  for (let i = 0; i < history.length; i++) {
    straight.take(records[i]);
    images.push(imageOf(straight));
  }
  for (const end of [history.length, 1, 200, 130, 128, 127, 12, 199]) assert.deepEqual(imageOf(history.after(end)), images[end - 1]);
  assert.equal(history.events.length, 20 * RECORDS.filter(({ type }) => type !== "keyframe").length);
});

test("a partition without a leader, or with a replica that is behind, is told in words", () => {
  const partition = { partition: 0, replicas: ["r1", "r2"], isr: ["r1", "r2"], leader: "r1", learners: [], elr: [], target: [] };
  const server = (node, fenced = false) => ({ node, fenced });
  const cluster = (change, fenced = false) =>
    liveCluster(
      { cluster: "c", servers: [server("r10"), server("r2", fenced)], topics: [{ name: "t", topicId: "5f", partitions: [{ ...partition, ...change }] }] },
      { active: "c1", term: 1, commitIndex: 9, controllers: [{ node: "c1", match: 7 }], gateways: ["g1"] },
      0,
    );
  assert.equal(health(cluster({})).level, "good");
  const damages = [{}, { isr: ["r1"] }, { leader: "" }, { paused: true }].map((change) => cluster(change).topics[0].damage);
  assert.deepEqual(damages, ["", "behind", "offline", "paused"]);
  assert.deepEqual(cluster({}).servers.map(({ node }) => node), ["r2", "r10"]);
  assert.equal(cluster({}).controllers[0].behind, 2);
  assert.deepEqual(health(cluster({ isr: ["r1"] }, true)), { level: "warning", words: "1 partition with a replica that is not in sync; r2 not heard of." });
  assert.deepEqual(health(cluster({ leader: "" })), { level: "bad", words: "1 partition without a leader." });
  assert.equal(cluster({ leader: "", paused: true }).topics[0].partitions[0].state, "paused");
});

test("events that stand in the timeline twice are left out", () => {
  const once = new History();
  const twice = new History();
  for (const record of RECORDS) once.add(record);
  for (const record of [...RECORDS, ...RECORDS]) if (record.type === "event") twice.add(record);
  const events = RECORDS.filter(({ type }) => type === "event");
  assert.deepEqual(twice.events.map(({ record }) => record), events);
  const past = once.after(once.length);
  const before = imageOf(past);
  past.take(events[0]);
  assert.deepEqual(imageOf(past), before);
});

test("the past has the same shape as the present", () => {
  const past = new Past();
  for (const record of RECORDS.slice(0, 8)) past.take(record);
  const cluster = pastCluster(past, "c");
  assert.equal(cluster.topics[0].partitions[0].leader, "r2");
  assert.deepEqual(cluster.topics[0].partitions[1].learners, ["r3"]);
  assert.match(health(cluster).words, /1 partition with a replica that is not in sync; r1 not heard of/);
});

test("bytes are shown as what they are", () => {
  const bytes = (text) => new TextEncoder().encode(text);
  assert.deepEqual(show(bytes("hello\nworld")), { format: "text", text: "hello\nworld" });
  assert.deepEqual(show(bytes('{"a": [1]}')).format, "json");
  assert.deepEqual(show(fromHex("bf6161f93e00ff")), { format: "cbor", text: '{\n "a": 1.5\n}' });
  assert.deepEqual(show(fromHex("ff00")), { format: "hex", text: "ff00" });
  assert.deepEqual(show(bytes("plain"), "json").format, "hex");
  assert.deepEqual(show(null).format, "null");
  for (const bad of ["", "18", "5f41", "9a00ffffff", "a161", "81".repeat(100)]) assert.throws(() => decodeCbor(fromHex(bad)), RangeError);
  assert.equal(decodeCbor(fromHex("3bffffffffffffffff")), -18446744073709551616n);
});

test("batches that are compressed with zstd are read, and hostile ones refused", () => {
  const codecs = { zstd: { decompress } };
  const zstd = ({ name }) => name.includes("zstd");
  const good = vectors.batches.good.filter(zstd);
  const bad = vectors.batches.bad.filter(zstd);
  assert.ok(good.length && bad.length);
  for (const { hex, records } of good) {
    const read = decodeBatch(fromHex(hex), { codecs });
    assert.deepEqual(read.map(({ value }) => value && new Uint8Array(value)), records.map((record) => record[4]));
  }
  for (const { hex } of bad) assert.throws(() => decodeBatch(fromHex(hex), { codecs }), { code: "CORRUPT_BATCH" });
  assert.throws(() => decompress(fromHex("28b52ffd00a8010000")), /window is too large/);
});

test("the window of a log shows its last records, and its epochs within", () => {
  const log = { logStart: 10, logEnd: 100, leaderEpoch: 4, epochs: [{ epoch: 1, start: 0 }, { epoch: 3, start: 60 }, { epoch: 4, start: 100 }] };
  const behind = { ...log, logEnd: 80 };
  assert.deepEqual(windowOf([log, behind], 50), { from: 50, to: 100 });
  assert.deepEqual(windowOf([log, behind], Infinity), { from: 10, to: 100 });
  assert.deepEqual(windowOf([], 50), { from: 0, to: 1 });
  assert.deepEqual(epochsOf(log, { from: 50, to: 100 }), [{ epoch: 1, from: 50, to: 60 }, { epoch: 3, from: 60, to: 100 }]);
  assert.deepEqual(epochsOf(behind, { from: 0, to: 100 }).at(-1), { epoch: 3, from: 60, to: 80 });
});

test("a timeline is searched by words, and what is bad stands out", () => {
  const record = (words, kind = "created") => ({ record: { type: "event", words, kind, cause: "" } });
  const events = [record("orders/0: r3 leads", "leader_elected"), record("clicks/1: nobody leads", "offline")];
  assert.deepEqual(matching(events, "leads OFFLINE").map(({ i }) => i), [1]);
  assert.equal(matching(events, " ").length, 2);
  assert.deepEqual(events.map((event) => levelOf(event.record)), ["plain", "bad"]);
});

test("the loss of a server is one incident, its return another, and a command one", () => {
  const isr = (before, after) => ({ before: { isr: before }, after: { isr: after } });
  const all = ["r1", "r2", "r3"];
  const gone = { cause: "session_expired", evidence: { node: "r1" } };
  const told = (index, time_ms, kind, more) => ({ type: "event", index, time_ms, kind, evidence: {}, cause: "", words: `${kind} ${index}`, ...more });
  const records = [
    told(1, 0, "topic_created", { topic: "a" }),
    told(1, 0, "created", { topic: "a", partition: 0 }),
    told(1, 0, "created", { topic: "a", partition: 1 }),
    told(5, 1000, "leader_elected", { partition: 0, cause: "leader_reported", evidence: { leader: "r1" } }),
    told(5, 1000, "leader_elected", { partition: 1, cause: "leader_reported", evidence: { leader: "r1" } }),
    told(6, 1500, "settings_changed", { topic: "b", partition: 0 }),
    told(7, 2000, "server_fenced", { server: "r1", ...gone }),
    told(6, 1900, "leader_elected", { partition: 4, cause: "handed_over", evidence: { node: "r1", reason: "shutdown" } }),
    told(7, 2000, "isr_shrunk", { partition: 2, ...isr(all, ["r2", "r3"]), ...gone }),
    told(8, 9000, "server_registered", { server: "r1" }),
    told(9, 9500, "isr_expanded", { partition: 2, cause: "follower_caught_up", ...isr(["r2", "r3"], all) }),
    told(9, 9500, "leader_elected", { partition: 3, cause: "session_resumed", evidence: { node: "r1" } }),
    told(10, 9600, "leader_elected", { partition: 0, cause: "preferred" }),
    told(11, 9700, "leader_elected", { partition: 1, cause: "preferred" }),
    { type: "refused", time_ms: 9800, kind: "refused", cause: "FORBIDDEN", words: "no" },
    told(12, 10_000, "server_fenced", { server: "r1", ...gone }),
  ];
  const incidents = incidentsOf(records.map((record, i) => ({ event: { record }, i })));
  const lines = incidents.map(({ title, events }) => [title, events.map(({ i }) => i)]);
  assert.deepEqual(lines, [
    ["topic created", [0, 1, 2]],
    ["", [5]],
    ["r1 is gone", [3, 4, 6, 7, 8]],
    ["r1 is back", [9, 10, 11]],
    ["leader elected", [12, 13]],
    ["", [14]],
    ["", [15]],
  ]);
  assert.deepEqual([0, 2, 4].map((i) => summaryOf(incidents[i].events)), [
    "topic_created 1",
    "server_fenced 7; 3 new leaders, 1 in-sync set shrank",
    "2 new leaders: preferred",
  ]);
});

test("what a command changes in the partitions of a topic is one incident with it", () => {
  const told = (index, more) => ({ type: "event", index, time_ms: 0, kind: "settings_changed", cause: "alter_topic", evidence: {}, ...more });
  const records = [told(1, { kind: "topic_changed", cause: "", words: "a was changed" }), told(1, { partition: 0 }), told(1, { partition: 1 }), told(2, { partition: 0 })];
  const incidents = incidentsOf(records.map((record, i) => ({ event: { record }, i })));
  assert.deepEqual(incidents.map(({ title, events }) => [title, events.length]), [["topic changed", 3], ["", 1]]);
  assert.equal(summaryOf(incidents[0].events), "a was changed; settings changed in 2 partitions");
});

test("a timeline that comes later is read", async () => {
  const telling = new Telling(() => null);
  const asked = [];
  const log = logOf([]);
  log.listOffsets = async () => new Map([[0, { offset: 0 }]]);
  log.describe = async (topic) => {
    asked.push(topic);
    if (asked.length === 1) throw Object.assign(new Error("no such topic"), { code: "UNKNOWN_TOPIC" });
  };
  await telling.follow(log);
  assert.equal(telling.phase, "absent");
  await telling.again(log, { topics: [] });
  assert.deepEqual([telling.phase, asked.length], ["absent", 1]);
  await telling.again(log, { topics: [{ name: "__timeline" }] });
  assert.equal(telling.phase, "following");
  await telling.again(log, { topics: [{ name: "__timeline" }] });
  assert.equal(asked.length, 2);
});

test("of topics the worst comes first", () => {
  const topic = (name, damage) => ({ name, damage });
  const order = worstFirst([topic("a", ""), topic("b", "behind"), topic("c", "offline"), topic("d", "paused"), topic("e", "behind")]);
  assert.deepEqual(order.map(({ name }) => name), ["c", "b", "e", "d", "a"]);
});

test("Play stays while the gateway gives no answer, and goes where there is nothing to play with", async () => {
  const panel = new PlayPanel();
  const nodes = [{ node: "r1", state: "running" }];
  const refusing = (code) => ({ play: () => Promise.reject(Object.assign(new Error(code), { code })) });
  for (const [log, then] of [
    [refusing("REQUEST_TIMED_OUT"), null],
    [{ play: async () => nodes }, nodes],
    [refusing("REQUEST_TIMED_OUT"), nodes],
    [refusing("UNREACHABLE"), nodes],
    [refusing("UNSUPPORTED"), null],
  ]) {
    await panel.ask({ draw: () => null }, log);
    assert.equal(panel.nodes, then);
  }
});

test("plots keep some minutes, under a round ceiling", () => {
  assert.deepEqual([0, 0.3, 1, 1.1, 99, 100, 101].map(ceiling), [1, 0.5, 1, 2, 100, 100, 200]);
  const series = new Series("r1");
  for (const at of [0, 60_000, 180_000, 181_000]) series.add(at, at);
  assert.deepEqual(series.points.map(([at]) => at), [60_000, 180_000, 181_000]);
});

test("numbers and times are short", () => {
  assert.deepEqual([0, 999, 1234, 12_345_678].map((number) => short(number)), ["0", "999", "1.23 k", "12.3 M"]);
  assert.deepEqual([0.00012, 0.0123, 2.345, 600].map(duration), ["120 µs", "12.3 ms", "2.3 s", "10 min"]);
  const noon = new Date(2026, 0, 31, 12, 0, 5, 7).getTime();
  assert.deepEqual([clock(noon, noon), clock(noon, noon + 86_400_000)], ["12:00:05.007", "2026-01-31 12:00:05"]);
});

test("records are asked for by place and time, of a partition or that of a key", () => {
  const all = { partition: null, offset: "", filters: NO_FILTERS };
  const timed = { ...NO_FILTERS, since: "2026-01-31T12:00", until: "2026-01-31T13:00" };
  const [since, until] = [new Date(2026, 0, 31, 12), new Date(2026, 0, 31, 13)];
  assert.deepEqual(optionsOf({ ...all, way: "offset", offset: "12" }, 3), { start: 12, end: "latest" });
  assert.deepEqual(optionsOf({ ...all, way: "newest", partition: 2 }, 3), { partitions: [2], start: "latest", end: null, reverse: true });
  assert.deepEqual(optionsOf({ ...all, way: "newest", filters: timed }, 3), { start: until, end: since, reverse: true });
  assert.deepEqual(optionsOf({ ...all, way: "earliest", filters: timed }, 3), { start: since, end: until });
  assert.deepEqual(optionsOf({ ...all, way: "follow", filters: timed }, 3), { start: "latest" });
  const { hex, of12 } = vectors.partitions.keys[5];
  assert.deepEqual(optionsOf({ ...all, way: "earliest", partition: "key", filters: { ...NO_FILTERS, key: `0x${hex}` } }, 12).partitions, [of12]);
  for (const wrong of [
    { way: "offset", offset: "-1" },
    { way: "offset" },
    { way: "newest", partition: "key" },
    { way: "newest", filters: { ...NO_FILTERS, since: "soon" } },
  ]) assert.throws(() => optionsOf({ ...all, ...wrong }, 3), RangeError);
  assert.deepEqual(pairsOf("a: 1\n\n b:2:3 \na:4"), [["a", "1"], ["b", "2:3"], ["a", "4"]]);
  assert.throws(() => pairsOf("a"), RangeError);
});

/** A record with these parts. */
function made({ key = null, value = "", headers = [], timestampMs = 0, partition = 0, offset = 0 }) {
  const bytes = (one) => (typeof one === "string" ? bytesOf(one) : one);
  return { key: bytes(key), value: bytes(value), headers: headers.map(([name, content]) => [name, bytes(content)]), timestampMs, partition, offset, leaderEpoch: 0 };
}

test("records are filtered by key, value, header and time, all at once", () => {
  const meets = (filters, record) => matcher({ ...NO_FILTERS, ...filters })(made(record));
  assert.ok(meets({}, { value: null }));
  assert.deepEqual(["ada", "adam", "0x616461", "0x"].map((key) => meets({ key }, { key: "ada" })), [true, false, true, false]);
  assert.ok(!meets({ key: "ada" }, {}), "a record without key has none");
  assert.deepEqual(["ell", "0x6c6c", "El", "0x6c6d"].map((value) => meets({ value }, { value: "hello" })), [true, true, false, false]);
  assert.ok(meets({ value: '"n": 2' }, { value: '{"n":2}' }), "as it is shown");
  assert.ok(meets({ value: '"n":2' }, { value: '{"n":2}' }), "as it is");
  assert.ok(meets({ value: '"n": 3' }, { value: "0xa1616e03" }), "CBOR, as it is shown");
  assert.ok(!meets({ value: "null" }, { value: null }));
  const headers = [["trace", "7f"], ["trace", "80"]];
  assert.deepEqual(["trace", "trace: 8", "trace:9", "race", "trace: 0x3830"].map((header) => meets({ header }, { headers })), [true, true, false, false, true]);
  const noon = new Date(2026, 0, 31, 12);
  const at = (ms) => meets({ since: "2026-01-31T12:00", until: "2026-01-31T13:00" }, { timestampMs: noon.getTime() + ms });
  assert.deepEqual([-1, 0, 3_599_999, 3_600_000].map(at), [false, true, true, false]);
  assert.ok(!meets({ key: "a", value: "b" }, { key: "a", value: "c" }));
  for (const filters of [{ key: "0x1" }, { value: "0xg" }, { until: "soon" }, { path: "= 3" }, { path: "a.b )" }, { path: "$.a =" }]) assert.throws(() => meets(filters, {}), RangeError);
});

test("records are filtered by what stands at a path of their JSON or CBOR", () => {
  const value = JSON.stringify({ id: 7, name: "lamp", items: [{ n: 1 }, { n: 5 }], "a b": { "=": null }, gone: false });
  const meets = (path) => matcher({ ...NO_FILTERS, path })(made({ value }));
  const yes = ["$.id", "id = 7", "$.id == 7", 'id="7"', "id != 8", "id > 6.5", "id >= 7", "id < 10", "id <= 7", "name = lamp", 'name = "lamp"', "name ~ am", "name > a", "items[1].n = 5", "items[*].n > 4", "$.items.*.n = 1", 'items = [{"n":1},{"n":5}]', '$["a b"]["="] = null', "gone = false", "$"];
  const no = ["$.ID", "id = 8", "id > 7", "id < 7", 'name > 3', "name ~ LAMP", "items[2]", "items[*].n > 5", "id.n", "items.length", "constructor", "__proto__", "$.name.length"];
  assert.deepEqual(yes.filter((path) => !meets(path)), []);
  assert.deepEqual(no.filter(meets), []);
  assert.ok(meets("gone"), "something is there: false");
  assert.ok(matcher({ ...NO_FILTERS, path: "n = 3" })(made({ value: "0xa1616e03" })), "of CBOR");
  for (const other of ["text", null, "0xff00", "7"]) assert.ok(!matcher({ ...NO_FILTERS, path: "n" })(made({ value: other })));
  assert.deepEqual(parsePath("a[0].b").steps, ["a", 0, "b"]);
});

test("a record is a line of JSON, as the command prints it", () => {
  const line = JSON.parse(lineOf(made({ key: "k", value: "0xff00", headers: [["h", "\ufeffx"], ["h", "0xfe"]], timestampMs: 5, partition: 2, offset: 9 })));
  assert.deepEqual(line, {
    ...{ partition: 2, offset: 9, leader_epoch: 0, timestamp: "1970-01-01T00:00:00.005+00:00", key: "k", value_b64: "/wA=" },
    headers: [{ name: "h", value: "\ufeffx" }, { name: "h", value_b64: "/g==" }],
  });
  assert.equal(JSON.parse(lineOf(made({ value: null }))).value, null);
  assert.ok(!lineOf(made({ value: "two\nlines" })).slice(0, -1).includes("\n"));
});

test("two looks at a topic say how much is in it and how fast it grows", () => {
  const partition = (number, logStart, highWatermark, bytes) => ({ partition: number, logStart, highWatermark, bytes });
  const topic = { topicId: "5f", partitions: [{}, {}] };
  const sizes = new Sizes();
  assert.deepEqual(sizes.of(topic), { whole: false });
  sizes.take("5f", 1000, [partition(0, 10, 30, 500), partition(1, 0, 5, 100)]);
  assert.deepEqual(sizes.of(topic), { records: 25, bytes: 600, recordsPerS: undefined, bytesPerS: undefined, whole: true });
  sizes.take("5f", 3000, [partition(0, 20, 50, 900), partition(1, 0, 9, 180)]);
  assert.deepEqual(sizes.of(topic), { records: 39, bytes: 1080, recordsPerS: 12, bytesPerS: 40, whole: true }, "where retention removed some, bytes have no rate");
  sizes.take("5f", 5000, [partition(0, 20, 60, 1000), partition(1, -1, -1, -1)]);
  assert.deepEqual(sizes.of(topic), { records: 40, bytes: 1000, recordsPerS: 5, bytesPerS: 50, whole: false });
});

/** A client whose consumer hands out these records. */
function logOf(records) {
  const closed = [];
  const consumer = {
    async *[Symbol.asyncIterator]() {
      yield* records;
    },
    close: async () => closed.push(true),
  };
  return { consume: () => consumer, closed };
}

test("a search finds some at a time, in the order of their times", async () => {
  const records = [5, 3, 4, 1, 2].map((at) => ({ timestampMs: at, partition: 0, offset: at, key: null }));
  const topic = { name: "t", partitions: [{}] };
  const all = { partition: null, offset: "", filters: NO_FILTERS };
  const times = (search) => search.found.map(({ timestampMs }) => timestampMs);
  const search = new Search(logOf(records), topic, { ...all, way: "newest" }, { most: 10, onChange: () => null });
  await search.more(3);
  assert.deepEqual([times(search), search.phase, search.looked], [[5, 4, 3], "paused", 3]);
  await search.more(3);
  assert.deepEqual([times(search), search.phase], [[5, 4, 3, 2, 1], "done"]);
  const following = new Search(logOf(records), topic, { ...all, way: "follow" }, { most: 2, onChange: () => null });
  await following.more(1);
  assert.deepEqual([times(following), following.looked], [[5, 4], 5]);
  const log = logOf(records);
  const stopped = new Search(log, topic, { ...all, way: "newest" }, { most: 10, onChange: () => null });
  await stopped.stop();
  assert.deepEqual([stopped.phase, log.closed.length], ["done", 1]);
});

test("of several partitions the newest of all come first", async () => {
  const partitions = [[9, 2], [], [8, 7, 1]];
  const log = { consume: (_, { partitions: [partition] }) => logOf(partitions[partition].map((at) => made({ timestampMs: at, partition }))).consume() };
  const topic = { name: "t", partitions: [{}, {}, {}] };
  const search = new Search(log, topic, { way: "newest", partition: null, offset: "", filters: NO_FILTERS }, { most: 10, onChange: () => null });
  await search.more(3);
  assert.deepEqual(search.found.map(({ timestampMs }) => timestampMs), [9, 8, 7]);
  await search.more(3);
  assert.deepEqual([search.found.map(({ timestampMs }) => timestampMs), search.phase], [[9, 8, 7, 2, 1], "done"]);
});

test("rates and percentiles come from two looks at the metrics", () => {
  const page = (counts, records) => parse(`# HELP x y\nm_total{op="a b"} 2.0\nr_total ${records}\n${counts.map((count, i) => `h_bucket{le="${["0.1", "0.2", "+Inf"][i]}"} ${count}`).join("\n")}\n`);
  const before = page([10, 10, 10], 5);
  const after = page([10, 20, 20], 25);
  assert.equal(rate(before, after, "r_total", 2), 10);
  assert.equal(rate(after, before, "r_total", 2), undefined);
  assert.equal(total(after, "m_total"), 2);
  assert.ok(Math.abs(quantile(before, after, "h", 0.5) - 0.15) < 1e-9);
  assert.equal(quantile(after, after, "h", 0.5), undefined);
  assert.equal(quantile(page([0, 0, 0], 0), page([0, 0, 4], 0), "h", 0.5), 0.2);
});

const page = (fetches, bytes, cpu, start = 1) => parse(
  `process_start_time_seconds ${start}\nprocess_cpu_seconds_total ${cpu}\n` +
    `tidelog_replica_fetches_total{follower="r2"} ${fetches}\ntidelog_replica_fetched_bytes_total{follower="r2"} ${bytes}\n` +
    `tidelog_replication_lag_records{follower="r2"} 7\ntidelog_replication_lag_seconds{follower="r2"} 0.5\n` +
    `tidelog_commit_latency_seconds_bucket{le="0.1"} ${fetches}\ntidelog_commit_latency_seconds_bucket{le="+Inf"} ${fetches}\n`,
);

test("samples are found by a label, wherever it stands", () => {
  const values = parse('a_total{x="1",y="p"} 2\na_total{y="q",x="1"} 3\na_total{xy="1"} 9\nab_total{x="1"} 9\n');
  assert.deepEqual([...byLabel(values, "a_total", "x")], [["1", 5]]);
  const after = parse('a_total{x="1"} 11\na_total{x="2"} 4\n');
  assert.deepEqual([...grownBy(values, after, "a_total", "x", 2)], [["1", 3], ["2", 2]]);
});

test("gateways are connected to the servers that say so, servers that are heard of to the active controller", () => {
  const flows = new Flows();
  const line = (role, peer) => `tidelog_replica_connections{peer="${peer}",role="${role}"} 1\n`;
  flows.take("r1", 1000, parse(line("gateway", "g2") + line("gateway", "g1") + line("replica", "r2")));
  flows.take("r3", 1000, parse(line("gateway", "g1")));
  assert.deepEqual([...flows.served()], [["r1", ["g1", "g2"]], ["r3", ["g1"]]]);
  const cluster = {
    ...{ gateways: ["g1", "g2"], active: "c2", servers: ["r1", "r2", "r3"].map((node) => ({ node, fenced: node === "r3" })) },
    controllers: [{ node: "c1" }, { node: "c2" }, { node: "c3", lost: true }],
  };
  const told = linksOf(cluster, flows.served()).map(({ from, to }) => `${from} ${to}`);
  assert.deepEqual(told, ["g1 r1", "g2 r1", "g1 c2", "g2 c2", "r1 c2", "r2 c2", "c1 c2"]);
  assert.deepEqual(linksOf({ ...cluster, active: "" }, new Map()), []);
});

test("two looks at a leader say what flows to its followers", () => {
  const flows = new Flows();
  flows.take("r1", 1000, page(10, 100, 1));
  assert.deepEqual(flows.links(), [{ leader: "r1", follower: "r2", fetches: 0, notices: 0, bytes: 0, behind: 7, seconds: 0.5 }]);
  flows.take("r1", 3000, page(30, 500, 2));
  assert.deepEqual(flows.links(), [{ leader: "r1", follower: "r2", fetches: 10, notices: 0, bytes: 200, behind: 7, seconds: 0.5 }]);
  assert.equal(flows.quantile("tidelog_commit_latency_seconds", 0.5), 0.05);
  flows.take("r1", 3500, page(30, 500, 2));
  assert.equal(flows.links()[0].bytes, 200, "the same page again says nothing of the time since");
  flows.take("r1", 4000, page(1, 1, 0.1, 3));
  assert.equal(flows.links()[0].bytes, 0, "it began anew");
});

test("a server that does not tell is no reason not to show the others", async () => {
  const flows = new Flows();
  const log = { gateway: {}, metrics: async (node) => (node === "r1" ? { page: 'tidelog_replication_lag_records{follower="r2"} 1\n' } : Promise.reject(new Error("no"))) };
  await new Promise((done) => {
    let answers = 0;
    flows.ask(log, ["r1", "r2"], () => ++answers === 2 && done());
    flows.ask(log, ["r1", "r2"], () => assert.fail("each is asked once at a time"));
  });
  assert.equal(flows.links().length, 1);
  assert.equal(flows.error("r2").message, "no");
  assert.equal(flows.error("r1"), undefined);
  await new Promise((done) => flows.ask({ gateway: null, metrics: () => Promise.reject(new Error("gone")) }, ["r1"], done));
  assert.deepEqual([flows.links().length, flows.error("r1")], [1, undefined], "that the gateway is gone says nothing of a server");
});

test("only settings that were changed are sent, in any unit, and an empty field is the default", () => {
  const partitions = [{ replicas: ["r1", "r2", "r3"] }, { replicas: ["r1", "r2", "r3", "r4"] }];
  const topic = { config: { commit_rule: "isr", retention_ms: "3600000", min_insync_replicas: "1", cleanup: "delete" }, partitions };
  const changed = (given) => changesOf(topic, given).map(({ name, from, to }) => [name, from, to]);
  assert.deepEqual(changed({ retention_ms: "1h", min_insync_replicas: "1", cleanup: "delete" }), []);
  assert.deepEqual(changed({ retention_ms: "3600000" }), []);
  assert.deepEqual(changed({ retention_ms: " ", min_insync_replicas: "" }), [["min_insync_replicas", "1", "2"], ["retention_ms", "3600000", "-1"]]);
  topic.config.commit_rule = "leader";
  assert.deepEqual(changed({ min_insync_replicas: "" }), []);
  topic.config.retention_waits_for = "archive";
  assert.deepEqual(changed({ retention_waits_for: " archive " }), []);
  assert.deepEqual(changed({ retention_waits_for: "archive,42" }), [["retention_waits_for", "archive", "archive,42"]]);
  assert.deepEqual(changed({ retention_waits_for: "" }), [["retention_waits_for", "archive", ""]]);
});

test("lists of servers and partitions are taken with commas and spaces", () => {
  const topic = { name: "t", partitions: [{}, {}, {}] };
  assert.deepEqual([listOf("r1, r2  r3,"), listOf(" "), partitionsOf(topic, "0, 2"), partitionsOf(topic, "")], [["r1", "r2", "r3"], [], [0, 2], []]);
  for (const wrong of ["3", "-1", "1.0", "x"]) assert.throws(() => partitionsOf(topic, wrong), /type a number from 0 to 2/);
});

test("a move is described before it begins, and measured while it goes on", () => {
  const one = { replicas: ["r1", "r2"], leader: "r1", isr: ["r1", "r2"], target: ["r2", "r3"] };
  assert.deepEqual(stepsOf(one, ["r2", "r3"], 2_000_000), [
    "r3 copies the log (2 MB), and becomes a replica when it is in sync.",
    "r1 then goes, and deletes its copy.",
    "r1 hands over the leadership before it goes.",
    "r2 becomes the preferred leader, in place of r1.",
  ]);
  assert.deepEqual(stepsOf(one, ["r2", "r1"], -1), ["No data moves: only the order changes.", "r2 becomes the preferred leader, in place of r1."]);
  assert.deepEqual(stepsOf(one, ["r1"], 0), ["r2 then goes, and deletes its copy.", "The number of replicas changes from 2 to 1."]);
  const logs = new Map([["r1", { logStart: 100, logEnd: 300 }], ["r3", { logStart: 100, logEnd: 151 }]]);
  const words = (known) => copiesOf(one, known).map(({ words: said }) => said);
  assert.deepEqual(words(logs), ["in sync", "51 of 200 records are copied (25 %)"]);
  assert.deepEqual(words(new Map()), ["in sync", "no answer yet"]);
});

test("partitions weigh their bytes, or what is written to them", () => {
  const topic = (...partitions) => [{ name: "t", topicId: "id", partitions: partitions.map((one, partition) => ({ partition, ...one })) }];
  const before = topic({ bytes: 1000, logStart: 0, highWatermark: 10 }, { bytes: -1, logStart: -1, highWatermark: -1 });
  const after = topic({ bytes: 2000, logStart: 0, highWatermark: 20 }, { bytes: 500, logStart: 0, highWatermark: 5 });
  assert.deepEqual(sizes(before), [{ topic: "t", partition: 0, weight: 1000 }]);
  assert.deepEqual(rates(before, after, 4), [{ topic: "t", partition: 0, weight: 250 }]);
  assert.deepEqual(rates(after, after, 4), []);
});

test("rules decide as they do at the gateways", () => {
  const { rules, asked } = vectors.decisions;
  for (const [principal, operation, resource, heirs, allowed] of asked) {
    assert.equal(decide(rules, principal, operation, resource, heirs), allowed, `${principal} ${operation} ${resource} ${heirs}`);
  }
  assert.ok(new Set(asked.map((one) => one.at(-1))).size === 2);
});

test("amounts are read and shown with the units of the command line", () => {
  for (const [text, unit, number] of vectors.quantities) {
    const read = () => quantities.quantityOf(text, quantities[unit]);
    if (number === null) assert.throws(read, RangeError, `${text} ${unit}`);
    else assert.equal(read(), number, `${text} ${unit}`);
  }
  const { BYTES, BYTES_PER_S, COUNT, inWords, MILLISECONDS, SECONDS } = quantities;
  const words = (unit, ...numbers) => numbers.map((number) => inWords(number, unit));
  assert.deepEqual(words(BYTES_PER_S, 10 << 20, 1001, 3e6), ["10MiB/s", "1001", "3MB/s"]);
  assert.deepEqual(words(BYTES, 2 ** 26, 1000, -1), ["64MiB", "1kB", "-1"]);
  assert.deepEqual(words(MILLISECONDS, 604_800_000, 5400_000, 1500), ["7d", "90m", "1500"]);
  assert.deepEqual([...words(COUNT, 500, 0), ...words(SECONDS, 86_400)], ["500", "0", "1d"]);
});

test("rights are named that who is logged in takes from themselves", () => {
  const rule = (principal, operation, resource, deny = false) => ({ principal, operation, resource, deny });
  const [own, everybody, all, many] = [rule("ada", "security", "cluster"), rule("*", "describe", "cluster"), rule("ada", "*", "topic:orders"), rule("ada", "read", "topic:o*")];
  const rules = [own, everybody, all, many];
  const access = { principal: "ada", superuser: false, authorization: true, heirs: [] };
  const lost = (rule, asker = access) => lostRights(asker, rule, rules, rules.filter((one) => one !== rule));
  assert.deepEqual([lost(own), lost(everybody), lost(many)], [["security cluster"], [], ["read topic:o*", "describe topic:o*"]]);
  assert.deepEqual(lost(all), ["write", "create", "alter", "delete"].map((one) => `${one} topic:orders`));
  assert.deepEqual([lost(own, { ...access, superuser: true }), lost(own, { ...access, authorization: false }), lost(own, { ...access, principal: "bob" })], [[], [], []]);
  const denied = rule("*", "read", "topic:orders", true);
  assert.deepEqual(lostRights(access, denied, rules, [...rules, denied]), ["read topic:orders"]);
  const heir = { ...access, heirs: ["ada"] };
  const administers = [rule("ada", "cluster", "cluster")];
  assert.deepEqual(lostRights(heir, { resource: "cluster" }, administers, administers, []), ["security cluster"]);
});

test("the lag of groups that are not shown is asked for in turn, a few at a time", async () => {
  const asked = [];
  const log = {
    describeGroup: async (group) => {
      asked.push(group);
      return { group, members: [], positions: [] };
    },
  };
  const names = Array.from({ length: 25 }, (_, i) => `g${i}`);
  const lags = new Lags();
  const look = async () => {
    asked.length = 0;
    await lags.look(log, [], names.slice(0, 3), names.slice(3), () => null);
    return asked.slice(3);
  };
  const [first, second, third] = [await look(), await look(), await look()];
  assert.deepEqual([first, second, third], [names.slice(3, 13), names.slice(13, 23), [...names.slice(23), ...names.slice(3, 11)]]);
  assert.equal(lags.of("g23").lag, 0);
});

test("the lag of groups is the sum over their partitions, and each topic is asked for once", async () => {
  const asked = [];
  const position = (topicId, partition, offset) => ({ topicId, partition, offset, committedMs: 1 });
  const share = { topicId: "5f", topic: "orders", partitions: [0, 1] };
  const log = {
    describeGroup: async (group) => {
      if (group === "gone") throw new Error("no such group");
      return { group, members: [{ member: "m1", instance: "desk", assignment: [share], leaving: [] }], positions: [position("5f", 0, 4), position("60", 0, 9)] };
    },
    describe: async (topic) => {
      asked.push(topic);
      return { partitions: [{ partition: 0, highWatermark: 10 }, { partition: 1, highWatermark: -1 }] };
    },
  };
  const lags = new Lags();
  await lags.look(log, [{ topicId: "5f", name: "orders" }], ["a", "b", "gone"], [], () => null);
  assert.deepEqual(asked, ["orders"]);
  const { lag, whole, partitions } = lags.of("b");
  assert.deepEqual([lag, whole], [6, false]);
  assert.deepEqual(partitions.map((one) => [one.topic, one.partition, one.member, one.lag]), [["orders", 0, "desk", 6], ["60", 0, undefined, undefined], ["orders", 1, "desk", undefined]]);
  assert.equal(lags.of("gone").error.message, "no such group");
  await lags.look(log, [], ["a"], [], () => null);
  assert.equal(lags.of("b"), undefined);
});

test("The banner says what metrics show, in the words of the alerts, the worst first", () => {
  const pages = [
    ["r1", 'tidelog_replica_late_ratio 0.82\ntidelog_replica_disk_full 0\n'],
    ["r3", "tidelog_wall_clock_seconds 2e9\ntidelog_certificate_expiry_timestamp_seconds 2e9\ntidelog_replica_registered 1\n"],
    ["g1", "tidelog_wall_clock_seconds 2e9\ntidelog_certificate_expiry_timestamp_seconds 2000000001\n"],
    ["r2", '# HELP tidelog_replica_disk_full …\ntidelog_replica_disk_full 1.0\ntidelog_replica_peer_unreachable_seconds{peer="r1"} 95.2\n'],
  ];
  const found = alertsIn(pages);
  assert.deepEqual(
    found.map(({ name, level, words }) => [name, level, words]),
    [
      ["TidelogCertificateExpired", "bad", "The certificate of r3 has expired"],
      ["TidelogDiskFull", "bad", "The disk of r2 is full: it takes no records"],
      ["TidelogServerStarved", "warning", "r1 has to wait for its machine 82 % of the time"],
      ["TidelogServerUnreachable", "warning", "r2 has not reached r1 for 2 min"],
    ],
  );
  assert.match(found[1].help, /Make room/);
  assert.deepEqual(alertsIn([["r1", "tidelog_replica_late_ratio 0.5\ntidelog_replica_registered 1\n"]]), []);
  assert.ok(ALERT_RULES.length >= 10 && ALERT_RULES.every(({ words, help }) => words && help));
});

test("What several processes say in the same words is said once", () => {
  const rules = [{ name: "Slow", metric: "limit", compare: ">=", bound: 0, level: "warning", words: "{{ $labels.server }} is slow", help: "" }];
  assert.equal(alertsIn([["g1", 'limit{server="r1"} 100'], ["g2", 'limit{server="r1"} 70']], rules).length, 1);
});

test("An alert that several processes give is one, with what each says and the help once", () => {
  const pages = ["r1", "r2", "r3", "r4", "r5"].map((node) => [node, "tidelog_replica_unreadable_batches 1"]);
  const [one, ...others] = alertsIn(pages);
  assert.deepEqual(others, []);
  const says = (node) => `Batches on ${node} that no reader can decode: 1`;
  assert.equal(one.words, `${says("r1")}; ${says("r2")}; ${says("r3")}; 2 more`);
  assert.match(one.help, /^Consumers stop there/);
});

test("Who has no right to see metrics asks for them once", async () => {
  globalThis.document ??= { hidden: false };
  let pauses = 0;
  const alerts = new Alerts(() => {}, async () => (pauses += 1));
  const refused = async () => {
    throw Object.assign(new Error("no such right"), { code: "FORBIDDEN" });
  };
  await alerts.follow({ metrics: refused }, () => ["r1"]);
  assert.equal(pauses, 0);
});

test("Who has no right to see the controllers asks for them once, and is told", async () => {
  globalThis.document ??= { hidden: false };
  let [asked, pauses] = [0, 0];
  const told = [];
  const quorum = async () => {
    asked += 1;
    throw Object.assign(new Error("no such right"), { code: "FORBIDDEN" });
  };
  await followQuorum({ quorum, gateway: "g1" }, () => pauses < 5, (one) => told.push(one.error.code), async () => (pauses += 1));
  assert.deepEqual([asked, pauses, told], [1, 0, ["FORBIDDEN"]]);
});

test("The controllers are asked until there is another client, and told when they say something else", async () => {
  globalThis.document ??= { hidden: false };
  const answers = [{ active: "c1" }, { active: "c1" }, null, null, { active: "c2" }];
  let at = 0;
  const told = [];
  const quorum = async () => answers[at] ?? Promise.reject(Object.assign(new Error("late"), { code: "REQUEST_TIMED_OUT" }));
  await followQuorum({ quorum, gateway: "g1" }, () => at < 5, (one) => told.push(one.error?.code ?? one.active), async () => (at += 1));
  assert.deepEqual(told, ["c1", "REQUEST_TIMED_OUT", "c2"]);
});

test("Servers whose figures the user may not see are asked for them once by a client", async () => {
  const flows = new Flows();
  let asked = 0;
  const metrics = async () => {
    asked += 1;
    throw Object.assign(new Error("no such right"), { code: "FORBIDDEN" });
  };
  const ask = (log) => new Promise((resolve) => flows.ask(log, ["r1"], resolve));
  const log = { metrics, gateway: "g1" };
  await ask(log);
  flows.ask(log, ["r1"], () => assert.fail("asked again"));
  assert.equal(asked, 1);
  await ask({ metrics, gateway: "g1" });
  assert.equal(asked, 2, "the user of another client may have the right");
});

test("Alerts are looked for at the processes that answer, until there is another client", async () => {
  globalThis.document ??= { hidden: false };
  let drawn = 0;
  const alerts = new Alerts(() => (drawn += 1), () => new Promise(() => {}));
  const asked = [];
  const log = {
    async metrics(node) {
      asked.push(node);
      if (node === "r1") throw new Error("it does not answer");
      return { page: node === "r2" ? "tidelog_replica_disk_full 1" : "" };
    },
  };
  alerts.follow(log, () => ["r1", "r2"]);
  while (!drawn) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(asked, ["", "r1", "r2"]);
  assert.deepEqual(alerts.found.map(({ name }) => name), ["TidelogDiskFull"]);
  alerts.follow({ metrics: async () => ({ page: "" }) }, () => []);
  while (drawn < 2) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(alerts.found, []);
});

/**
 * Send orders and read them back: Tidelog from Node.
 *
 *     node docs/examples/orders.mjs [ws://127.0.0.1:9292]
 */

import * as tidelog from "../../shared/js/tidelog.js";

const url = process.argv[2] ?? "ws://127.0.0.1:9292";
const log = await tidelog.connect(url);

await log.createTopic("orders-node", { partitions: 3, existOk: true });

const producer = await log.producer("orders-node");
const customers = ["ada", "grace", "edsger"];
for (let number = 1; number <= 9; number++) {
  const order = { number, amount: 10 * number };
  await producer.submit(JSON.stringify(order), { key: customers[number % 3] }); // the same key: the same partition, in order
}
const last = await producer.send(JSON.stringify({ number: 10, amount: 5 }), { key: "ada" });
console.log(`order 10 is record ${last.offset} of partition ${last.partition}, ${last.durability}`);
await producer.close(); // all are acknowledged, or this says how many are not

let total = 0; // of all orders in the topic, also those of earlier runs
for await (const { key, value } of log.consume("orders-node", { start: "earliest", end: "latest" })) {
  const { number, amount } = JSON.parse(new TextDecoder().decode(value));
  console.log(`${new TextDecoder().decode(key)}: order ${number}, ${amount}`);
  total += amount;
}
console.log(`total ${total}`);

await log.close();

/** CRC-32C (Castagnoli), eight bytes at a time. */

const POLYNOMIAL = 0x82f63b78;
const TABLES = makeTables();

/** Return the checksum of `data`, unsigned; `crc`: the checksum of the bytes before it. */
export function crc32c(data, crc = 0) {
  const [t0, t1, t2, t3, t4, t5, t6, t7] = TABLES;
  const whole = data.length - (data.length % 8);
  let sum = ~crc;
  let at = 0;
  for (; at < whole; at += 8) {
    sum ^= data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24);
    sum =
      t7[sum & 255] ^
      t6[(sum >>> 8) & 255] ^
      t5[(sum >>> 16) & 255] ^
      t4[sum >>> 24] ^
      t3[data[at + 4]] ^
      t2[data[at + 5]] ^
      t1[data[at + 6]] ^
      t0[data[at + 7]];
  }
  for (; at < data.length; at++) sum = t0[(sum ^ data[at]) & 255] ^ (sum >>> 8);
  return ~sum >>> 0;
}

function makeTables() {
  const tables = [new Int32Array(256)];
  for (let byte = 0; byte < 256; byte++) {
    let sum = byte;
    for (let bit = 0; bit < 8; bit++) sum = sum & 1 ? (sum >>> 1) ^ POLYNOMIAL : sum >>> 1;
    tables[0][byte] = sum;
  }
  for (let distance = 1; distance < 8; distance++) {
    const before = tables[distance - 1];
    tables.push(before.map((sum) => tables[0][sum & 255] ^ (sum >>> 8)));
  }
  return tables;
}

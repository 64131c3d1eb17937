/** Driver of the JavaScript client in Node. */

import readline from "node:readline";
import zlib from "node:zlib";
import { Commands } from "./commands.js";

const zstd = zlib.zstdDecompressSync && { decompress: zlib.zstdDecompressSync, compress: zlib.zstdCompressSync };
const commands = new Commands({ options: { codecs: zstd ? { zstd } : {} }, features: ["expected_offset", "discover", "groups", "access", ...(zstd ? ["zstd"] : [])] });

for await (const line of readline.createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await commands.answer(JSON.parse(line))));
}
process.exit(0);

/** The suite of Durable Streams against the server whose streams are below STREAMS_URL. Forks are not offered. */

import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({ baseUrl: process.env.STREAMS_URL });

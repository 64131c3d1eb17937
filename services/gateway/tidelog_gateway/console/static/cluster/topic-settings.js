/**
 * The settings of a topic, for forms: `help`; `choices`, or `names`: what it names, or a number's `least`,
 * `most` and `noun` (what it counts, such as milliseconds; it may be given with a unit); `text`: the
 * default; `fixed`: chosen when the topic is created. Generated from the code by `make pages`.
 */
export const TOPIC_SETTINGS = [
  {"name": "commit_rule", "help": "What is committed: isr: durable on every in-sync replica; quorum: durable on a majority of the replicas; leader: durable on the leader, copies follow (a failover may lose records).", "choices": ["isr", "quorum", "leader"], "text": "isr", "fixed": true},
  {"name": "unclean_election", "help": "true: where no replica is left that holds everything committed, another one may lead; records may be lost.", "choices": ["false", "true"], "text": "false", "fixed": false},
  {"name": "min_insync_replicas", "help": "A produce with acks all is refused, and nothing commits, while fewer replicas are in sync.", "least": 1, "most": 100, "noun": "", "text": "", "fixed": false},
  {"name": "flush", "help": "fsync: durable before it counts; interval: at intervals; os: when the system likes.", "choices": ["fsync", "interval", "os"], "text": "fsync", "fixed": true},
  {"name": "flush_interval_ms", "help": "The time between two fsyncs with flush=interval.", "least": 1, "most": 3600000, "noun": "milliseconds", "text": "1000", "fixed": false},
  {"name": "segment_max_bytes", "help": "A segment file is closed at this size.", "least": 1024, "most": 1073741824, "noun": "bytes", "text": "67108864", "fixed": false},
  {"name": "segment_max_age_ms", "help": "A segment file is closed when its first record is this old.", "least": 1000, "most": 3153600000000, "noun": "milliseconds", "text": "604800000", "fixed": false},
  {"name": "max_batch_bytes", "help": "A larger batch is refused.", "least": 1024, "most": 11534336, "noun": "bytes", "text": "1048576", "fixed": false},
  {"name": "replica_max_lag_ms", "help": "A follower that was not caught up for this long leaves the in-sync set.", "least": 1, "most": 3600000, "noun": "milliseconds", "text": "10000", "fixed": false},
  {"name": "replica_max_lag_records", "help": "A follower that is further behind, though it could have fetched, leaves the in-sync set; 0: not judged.", "least": 0, "most": 1099511627776, "noun": "", "text": "0", "fixed": false},
  {"name": "cleanup", "help": "delete: retention; compact: the last record of each key stays, and all records without one.", "choices": ["delete", "compact", "compact,delete"], "text": "delete", "fixed": false},
  {"name": "retention_ms", "help": "Closed segments whose newest record is older are deleted; -1: never.", "least": -1, "most": 3153600000000, "noun": "milliseconds", "text": "-1", "fixed": false},
  {"name": "retention_bytes", "help": "The oldest closed segments are deleted while the rest holds this much; -1: no bound.", "least": -1, "most": 1152921504606846976, "noun": "bytes", "text": "-1", "fixed": false},
  {"name": "retention_records", "help": "The oldest closed segments are deleted while the rest holds this many records; -1: no bound.", "least": -1, "most": 1152921504606846976, "noun": "", "text": "-1", "fixed": false},
  {"name": "retention_waits_for", "help": "Consumer groups (since feature level 7): retention deletes no segment with records that one of them has not read. Empty: retention waits for nobody.", "names": "groups", "text": "", "fixed": false},
  {"name": "retention_waits_max_ms", "help": "The bound of that wait in time: it ends when a segment was last written this long, plus retention_ms, ago (since feature level 7). 0: no bound.", "least": 0, "most": 3153600000000, "noun": "milliseconds", "text": "604800000", "fixed": false},
  {"name": "retention_waits_max_bytes", "help": "The bound of that wait in bytes of a partition that are kept only for it (since feature level 7). 0: no bound.", "least": 0, "most": 1152921504606846976, "noun": "bytes", "text": "10737418240", "fixed": false},
  {"name": "compaction_min_lag_ms", "help": "Records younger than this are not compacted.", "least": 0, "most": 3153600000000, "noun": "milliseconds", "text": "0", "fixed": false},
  {"name": "max_compaction_lag_ms", "help": "A record is compacted away at most this long after a later record of its key was appended, plus two retention checks and the time of the pass (since feature level 4). 0: no bound.", "least": 0, "most": 3153600000000, "noun": "milliseconds", "text": "0", "fixed": false},
  {"name": "tombstone_retention_ms", "help": "A record without a value goes this long after it was first compacted.", "least": 0, "most": 3153600000000, "noun": "milliseconds", "text": "86400000", "fixed": false},
  {"name": "validate_batches", "help": "The gateway refuses a batch that readers could not decode. false (since feature level 4): producers are trusted, and the gateway reads headers alone.", "choices": ["true", "false"], "text": "true", "fixed": false},
];

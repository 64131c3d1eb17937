"""Imports topics from a Kafka cluster, through confluent-kafka.

A record is written at the offset that it has in Kafka. Kafka's logs have gaps: markers of transactions, aborted
records, what compaction removed, and everything below the beginning of the log. In Tidelog sparse and empty batches
cover these offsets, as compaction leaves them. So the idea of the room above holds here, too: the end of the copy is
the position at which to continue, and the positions of consumer groups need no translation.

    cluster.py         requests to Kafka: topics, settings, offsets, positions of groups
    reader.py          reads records of all partitions in rounds
    batches.py         records -> batches at their offsets
    topic_settings.py  Kafka's settings of a topic -> ours
    importer.py        the run: begins, copies, begins again after errors
    comparison.py      reads both sides again and compares them
"""

"""The topic ``__timeline``: everything that happened to the cluster, in order and with causes, within its retention.

Every change of the metadata makes *events*, numbered 1, 2, 3, … without a gap in the order of the controllers' log.
One event concerns one thing: a partition, a topic, a replica server or a controller. The active controller appends
events to the one partition of the topic, each exactly once and in order. Now and then it appends a *keyframe*: the
whole cluster after some event, in as many records as it takes. If events could not be kept until they were written, a
*gap* names the missing numbers.

    records.py     the contents of a record, as CBOR
    sentences.py   an event as a sentence
    replay.py      from records to the state of the cluster at some moment
    query.py       from a moment to the records that are needed for it, read by a client
"""

from tidelog.timeline.records import decode, encode
from tidelog.timeline.replay import Past

__all__ = ["Past", "decode", "encode"]

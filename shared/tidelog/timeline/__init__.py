"""The topic ``__timeline``: everything that happened to the cluster, in order and with causes, as long as it is kept.

Every change of the metadata makes *events*, numbered 1, 2, 3, … without a gap in the order of the controllers' log;
one event is about one thing: a partition, a topic, a replica server or a controller. The active controller appends
them to the one partition of the topic, each exactly once and in order. Now and then it appends a *keyframe*: the
whole cluster as it was after some event, in as many records as it takes. Where events could not be kept until they
were written, a *gap* says which numbers are missing.

    records.py     what a record says, as CBOR
    sentences.py   what an event says, in a sentence
    replay.py      from records to the state of the cluster at some moment
    query.py       from a moment to the records that are needed for it, read by a client
"""

from tidelog.timeline.records import decode, encode
from tidelog.timeline.replay import Past

__all__ = ["Past", "decode", "encode"]

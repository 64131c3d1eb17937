"""Answers to questions about a cluster: why a record is where it is, why a group lags, why there is a gap.

Each question is a function ``why_...`` that takes a connected ``Log`` and returns an ``Explanation``
(``explanation.py``): sentences for people, facts for programs, and what is not known. ``tidelog why`` prints them.

==================  ====================================================================================
``record.py``       who sent a record, when, where it is durable, whether it is committed, who has read it
``gap.py``          why readers get no record from an offset on
``duplicate.py``    whether two records are duplicates, and how that came about
``group.py``        why a consumer group lags: which member and partition, and what it waits for
``slow.py``         which station takes the time of an ack
``refusal.py``      which facts decided that a request was refused
==================  ====================================================================================

In each module a function that asks the cluster (``ask_...``) returns evidence, and a pure function turns evidence
into sentences (``explain_...``). Nothing is written for an answer: all evidence is what the cluster keeps anyway. The
functions run on trio. ``inquiry.py`` has what they share: requests that may fail, in parallel.
``samples.py`` reads the values of metrics from their pages. ``partition_state.py`` has what the commands for people
need, too: whether a leader refuses writes, where records were lost, and how long readers have waited.

Only ``cli`` and programs for agents import this room. It imports the client and the timeline.
"""

"""What others get of the outcome of a command: a delta for watchers, and events for the active controller's log."""

from __future__ import annotations

from collections import Counter

from tidelog.sansio.effects import Event
from tidelog.wire.metadata_image import encode_delta

from tidelog_controller.metadata.state import Applied, MetadataState

LINES = 100
"""How many partitions, for each kind of change, get a log line of their own when one command changes them. The others
are only counted, since writing ten thousand lines takes longer than heartbeats may. The timeline and the partitions'
histories have all changes."""


def delta_of(before: MetadataState, applied: Applied, *, secrets: bool = False) -> bytes:
    """Return the change of the metadata that a command made, encoded for watchers. Its size depends on what changed:
    of a topic only the changed partitions are listed, unless the topic is new, has new settings or more partitions.
    With ``secrets`` it includes the ticket keys."""
    whole = []
    for topic in applied.topics:
        old = before.topics.get(topic.topic_id)
        if old is None or old.config != topic.config or len(old.partitions) != len(topic.partitions):
            whole.append(topic)
    whole_ids = {topic.topic_id for topic in whole}
    partitions = []
    for key in dict.fromkeys(key for key, _ in applied.changes):
        state = applied.state.partition(*key)
        if key.topic_id not in whole_ids and state is not None and state is not before.partition(*key):
            partitions.append((key, state))
    return encode_delta(
        applied.servers,
        whole,
        applied.deleted_ids,
        partitions,
        applied.access,
        applied.level,
        applied.forgotten,
        applied.ticket_keys if secrets else None,
    )


def events_of(before: MetadataState, applied: Applied) -> list[Event]:
    """Return the events that the active controller logs after a command: one for each changed server, topic, feature
    level or ticket key, one for all changes of tokens, rules and quotas, and one for each changed partition, up to
    ``LINES`` of a kind. An empty list if nothing changed."""
    events: list[Event] = []
    for server in applied.servers:
        known = before.servers.get(server.node)
        if known is None or known.broker_epoch != server.broker_epoch:
            name = "server_registered"
        elif server.fenced != known.fenced:
            name = "server_fenced" if server.fenced else "server_unfenced"
        else:
            name = "server_draining" if server.draining else "server_undrained"
        fields = {"server": server.node, "broker_epoch": server.broker_epoch, "url": server.url}
        events.append(Event(name, fields))
    for topic in applied.topics:
        old = before.topics.get(topic.topic_id)
        if old is None:
            fields = {"topic": topic.name, "topic_id": topic.topic_id, "partitions": len(topic.partitions)}
            events.append(Event("topic_created", fields))
        elif old.config != topic.config:
            settings = {name: text for name, text in topic.config.texts().items() if text != old.config.texts()[name]}
            events.append(Event("topic_changed", {"topic": topic.name, "topic_id": topic.topic_id, **settings}))
        elif len(old.partitions) != len(topic.partitions):
            fields = {"topic": topic.name, "topic_id": topic.topic_id, "partitions": len(topic.partitions)}
            events.append(Event("topic_grown", fields))
    for topic_id in applied.deleted_ids:
        events.append(Event("topic_deleted", {"topic": before.topics[topic_id].name, "topic_id": topic_id}))
    seen = Counter[str]()
    for key, entry in applied.changes:
        seen[entry.event] += 1
        if entry.event not in ("created", "settings_changed") and seen[entry.event] <= LINES:
            fields = {
                "topic": applied.state.topics[key.topic_id].name,
                "partition": key.partition,
                "leader": entry.leader or None,
                "leader_epoch": entry.leader_epoch,
                "epoch": entry.epoch,
                "isr": list(entry.isr),
                "cause": entry.cause,
                "evidence": entry.evidence,
            }
            events.append(Event(f"partition_{entry.event}", fields))
    del seen["created"], seen["settings_changed"]
    if more := {kind: count - LINES for kind, count in seen.items() if count > LINES}:
        events.append(Event("more_partitions_changed", more))
    events += [Event("server_forgotten", {"server": node}) for node in applied.forgotten]
    if applied.level is not None:
        events.append(Event("feature_level", {"level": applied.level, "before": before.level}))
    if applied.access is not None:
        kinds = ("tokens", "acls", "quotas")
        events.append(Event("access_changed", {kind: len(getattr(applied.access, kind)) for kind in kinds}))
    if applied.ticket_keys:
        events.append(Event("ticket_key_added", {"key_id": applied.ticket_keys[-1].key_id}))
    return events

"""Describes an event of the timeline in one sentence: what happened, and why."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.timeline.records import Document, subject_of


def sentence(record: Document) -> str:
    """Return a sentence about an event of the timeline: the thing, the change, and the cause or the principal that
    asked for it."""
    evidence, about = record["evidence"], subject_of(record)
    if "partition" in record:
        return f"{about}: {change(record)}, because {reason(record['cause'], evidence)}"
    return _of_thing(record, about) + (f" (asked for by {evidence['asked_by']})" if "asked_by" in evidence else "")


def refusal_sentence(record: Document) -> str:
    """Return a sentence about a record of type ``refused``: the principal ("somebody" if there is none), its request,
    how often it was refused if more than once, and the error. For ``others``, which are counted together, return how
    often and the code of the last error."""
    times = f" {record['count']} times" if record["count"] > 1 else ""
    if record["op"] == "others":
        return f"other requests were refused{times}, the last with {record['cause']}"
    subject = subject_of(record)
    about = f" for {subject}" if subject != "refused" and subject != f"server {record['asked_by']}" else ""
    who = record["asked_by"] or "somebody"
    return f"{who} asked for {record['op']}{about} and was refused{times}: {record['message']} ({record['cause']})"


def _of_thing(record: Document, about: str) -> str:
    """Return a sentence about an event of a server, a controller or a topic, whose name is ``about``. For an unknown
    kind, the sentence has the kind's name as words."""
    kind, evidence = record["kind"], record["evidence"]
    name = str(record.get("server") or record.get("controller") or record.get("topic"))
    after: Document = record["after"] or {}
    match kind:
        case "server_joined":
            return f"replica server {name} joined the cluster, at {after['url']}"
        case "server_registered":
            data = f"; its data directory was {evidence['data']}" if "data" in evidence else ""
            restart = f"after a restart that was {evidence['restart']}"
            return f"replica server {name} began another incarnation, {restart}{data}"
        case "server_fenced":
            return f"replica server {name} was fenced, because {reason('session_expired', evidence)}"
        case "server_unfenced":
            return f"replica server {name} was heard of again"
        case "server_draining":
            return f"replica server {name} is being drained: it is to lead nothing"
        case "server_undrained":
            return f"replica server {name} may lead again"
        case "server_forgotten":
            return f"replica server {name} is none of the cluster any more"
        case "metadata_recovered":
            return f"the metadata went back to index {evidence['index_before']}: a controller goes on alone (rescue)"
        case "cluster_level_raised":
            return (
                f"the cluster is at feature level {evidence['level']} from now on, after {evidence['level_before']}"
            )
        case "ticket_keys_rotated":
            return f"the key of producer tickets was rotated: key {evidence['key_id']} signs from now on"
        case "topic_created":
            return f"topic {name} was created with {_partitions(evidence)}"
        case "topic_deleted":
            return f"topic {name} was deleted, with {_partitions(evidence)}"
        case "topic_grown":
            return f"topic {name} grew from {evidence['partitions_before']} to {evidence['partitions']} partitions"
        case "topic_changed":
            changes = (f"{n} {t}" for n, t in evidence.items() if n != "asked_by")
            return f"settings of topic {name} were changed: {', '.join(changes)}"
        case "controller_active":
            return f"controller {name} is the active one from now on, in term {evidence['term']}"
        case "controller_joined":
            return f"controller {name} joined the group, {'with a vote' if after['voter'] else 'without a vote yet'}"
        case "controller_changed":
            return f"controller {name} {'has a vote now' if after['voter'] else 'has no vote any more'}"
        case "controller_left":
            return f"controller {name} left the group"
    return f"{about}: {kind.replace('_', ' ')}"


def _partitions(evidence: Mapping[str, str]) -> str:
    return f"{evidence['partitions']} partition{'' if evidence['partitions'] == '1' else 's'}"


def change(record: Document) -> str:
    """Return a clause that says what an event changed in a partition, such as its leader or its in-sync replicas. For
    an unknown kind it is the kind's name as words."""
    after: Document = record["after"]
    before: Document = record["before"] or {}
    leader, isr = after["leader"], " ".join(after["isr"]) or "nobody"
    was = before.get("leader") if "leader" in before else leader
    match record["kind"]:
        case "created":
            return f"created on {' '.join(after['replicas'])}, led by {leader}"
        case "leader_elected":
            who = f"{leader} leads on" if leader == was else f"{leader} leads" + (f" after {was}" if was else "")
            return f"{who}, in leader epoch {after['leader_epoch']}, in sync {isr}"
        case "offline":
            return f"nobody leads{f' after {was}' if was else ''}, in sync {isr}"
        case "sealing":
            return f"nobody leads{f' after {was}' if was else ''} until enough replicas have sealed the old epoch"
        case "awaiting":
            return f"nobody leads yet, {record['evidence']['awaited']} have not reported"
        case "isr_shrunk" | "isr_expanded" | "isr_changed":
            new: list[str] = after["isr"]
            old: list[str] = before.get("isr", new)
            gone: list[str] = [node for node in old if node not in new]
            come: list[str] = [node for node in new if node not in old]
            parts = [f"{' '.join(gone)} left"] * bool(gone) + [f"{' '.join(come)} joined"] * bool(come)
            more = f", the replicas are {' '.join(after['replicas'])}" if "replicas" in before else ""
            return f"{' and '.join(parts) or 'a change of'} the in-sync set, which is {isr} now{more}"
        case "isr_refused":
            return "a change of the in-sync set was refused"
        case "elr_changed":
            return f"the eligible replicas are {' '.join(after.get('elr', ())) or 'none'} now"
        case "replicas_changed":
            return f"the replicas are {' '.join(after['replicas'])} now"
        case "reassignment_began":
            return f"the replicas are to be {' '.join(after.get('target') or after['replicas'])}"
        case "transfer_began":
            return f"leadership is to go from {leader} to {after.get('successor')}"
        case "transfer_withdrawn":
            return f"{leader} goes on leading: the transfer was withdrawn"
        case "read_only":
            return "no records are taken any more"
        case "writable":
            return "records are taken again"
        case "paused":
            return "paused: nothing is written, read or copied"
        case "resumed":
            return f"resumed, led by {leader or 'nobody'} in leader epoch {after['leader_epoch']}"
        case "learners_changed":
            return f"the learners are {' '.join(after.get('learners', ())) or 'none'} now"
        case "tail_doubtful":
            return f"the end of the log on {record['evidence'].get('node')} is doubtful: the copy does not count"
        case "tail_settled":
            return f"the end of the log on {record['evidence'].get('node')} is settled: the copy counts again"
        case "tail_given_up":
            return f"{record['evidence'].get('node')} gives up the end of its log for the leader's"
        case "records_possibly_lost":
            evidence = record["evidence"]
            span = f"{evidence['start']} up to {evidence['end']}"
            return f"records from offset {span} are possibly lost: {evidence['node']} cut them"
        case "records_lost":
            evidence = record["evidence"]
            span = f"{evidence['start']} up to {evidence['end']}"
            return f"{evidence['node']} cut {evidence['count']} committed records, offsets {span}"
    return str(record["kind"]).replace("_", " ")


def reason(cause: str, evidence: Mapping[str, str]) -> str:
    """Return a clause, for the end of a sentence, that explains the cause of an event with its evidence. For an
    unknown cause it is the cause's name as words."""
    node, asker = evidence.get("node", "a server"), evidence.get("asked_by")
    silent = f": nothing was heard of it for {evidence['silent_ms']} ms" if "silent_ms" in evidence else ""
    broken = " after its link broke" if evidence.get("link") == "broken" else ""
    lagging = [name.removesuffix(".behind_ms") for name in evidence if name.endswith(".behind_ms")]
    caught_up = [name.removesuffix(".durable") for name in evidence if name.endswith(".durable")]
    match cause:
        case "session_expired":
            return f"the session of {node} ended{silent}{broken}"
        case "session_resumed":
            return f"{node} was heard of again"
        case "registered":
            data = f", its data directory {evidence['data']}" if "data" in evidence else ""
            restart = f"after a restart that was {evidence.get('restart', 'unknown')}"
            return f"{node} began another incarnation, {restart}{data}"
        case "leader_reported":
            reports, live = evidence.get("reports"), evidence.get("live")
            return f"{reports} of {live} live members reported {evidence.get('leader')} dead"
        case "handed_over":
            return f"{node} handed it over ({evidence.get('reason')})"
        case "data_lost":
            return f"{node} says that its copy is damaged"
        case "sealed":
            return f"{evidence.get('seals')} of {evidence.get('replicas')} replicas have sealed the old epoch"
        case "rescue":
            return "the metadata went back, and a controller goes on alone"
        case "recovered":
            return f"of {evidence.get('replicas')} replicas {evidence.get('seals')} have reported what they know"
        case "transferred":
            return f"{evidence.get('to')} had everything that {evidence.get('from')} had"
        case "follower_lagging":
            return f"{' '.join(lagging) or 'a follower'} was behind for too long"
        case "follower_caught_up":
            return f"{' '.join(caught_up) or 'a follower'} has caught up"
        case "unclean_election":
            trigger = reason(evidence["trigger"], evidence) if evidence.get("trigger") else "records were lost"
            return f"nobody was live who holds everything committed and the topic allows it; {trigger}"
        case "commit_rule":
            return "its leader did not wait for copies (commit_rule leader)"
        case "operator" | "reassign" | "reassignment_cancelled" | "alter_learners":
            return f"{asker or 'an operator'} wants it"
        case "rebalance":
            return f"{asker or 'an operator'} wants the load evened out ({evidence.get('sake')})"
        case "create_topic" | "grow_topic":
            done = "created" if cause == "create_topic" else "made larger"
            return f"its topic was {done}" + (f" by {asker}" if asker else "")
        case "alter_topic":
            return "the settings of its topic were changed" + (f" by {asker}" if asker else "")
        case "preferred_leader":
            return f"{evidence.get('to')} is the preferred replica"
        case "draining":
            return f"{evidence.get('from')} is being drained"
        case "reassignment":
            return f"{evidence.get('from')} is to be no replica any more"
        case "reassigned":
            return f"{evidence.get('target')} are in sync"
        case "transfer_timed_out":
            return f"{evidence.get('successor')} did not get to the end of the log in {evidence.get('waited_s')} s"
    return cause.replace("_", " ")

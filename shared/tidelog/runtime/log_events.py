"""The table of all log events: the level of each, its meaning, and what to do about it.

``logs.perform`` takes the level from here, ``docs/operations.md`` shows the table, and a test finds events without an
entry and entries that nothing writes. Levels: ``info`` is normal operation; a ``warning`` needs attention if it stays
or comes often; an ``error`` means that something is lost, or does not work until an operator acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]
NOTHING = "Nothing."
WAIT = "Nothing, unless it stays."


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An entry of the table: one kind of log line, with its level, what it means, and what an operator does about it.
    ``counted``: the metric ``…_events_total`` of its service counts such lines."""

    name: str
    level: Level
    meaning: str
    todo: str = NOTHING
    counted: bool = True


ANY = (
    LogEvent(
        "certificates_not_read",
        "warning",
        "Changed files of certificates cannot be read; the former ones stay in force.",
        "Put the files right before the former ones expire; they are looked at again with each connection.",
        counted=False,
    ),
    LogEvent(
        "connection_handler_failed",
        "error",
        "A fault of ours: what a peer sent made its connection's task fail. The connection was closed.",
        "Report it, with the traceback.",
        counted=False,
    ),
    LogEvent(
        "http_failed",
        "error",
        "A fault of ours: a plain HTTP request (remote) could not be served. Its connection was closed.",
        "Report it, with the traceback.",
        counted=False,
    ),
    LogEvent(
        "page_failed",
        "error",
        "A fault of ours: a page (metrics, readiness, console) could not be made; its reader got status 500.",
        "Report it, with the traceback.",
        counted=False,
    ),
    LogEvent(
        "data_dir_closed",
        "warning",
        "Other users of the machine could read the data directory. It is closed now: mode 0700, its files 0600.",
        "Nothing, unless others use the machine: they may have copied it. docs/security.md says what that is worth.",
        counted=False,
    ),
    LogEvent(
        "data_dir_open",
        "warning",
        "Others may read the data directory, and it cannot be closed: it is another user's, or one such as /tmp.",
        "Close it (chmod 700), or give data_dir a directory of its own.",
        counted=False,
    ),
    LogEvent(
        "secret_file_open",
        "warning",
        "Everybody on the machine may read a file with a secret.",
        "chmod 600, or 640 with a group of its own.",
        counted=False,
    ),
    LogEvent(
        "connection_ended",
        "debug",
        "A connection broke without a goodbye.",
        counted=False,
    ),
    LogEvent(
        "handshake_failed",
        "debug",
        "What connected spoke no WebSocket, or gave up.",
        counted=False,
    ),
    LogEvent(
        "tls_handshake_failed",
        "debug",
        "What connected spoke no TLS, or showed no certificate that is trusted here.",
        "If it is a server of this cluster: look at its certificate and both sides' tls_ca.",
        counted=False,
    ),
)
"""Lines of any service, about its connections."""

CONTROLLER = (
    LogEvent("controller_started", "info", "It listens; entries: of the stored log.", counted=False),
    LogEvent("cluster_founded", "info", "All controllers have met with empty stores: the cluster begins."),
    LogEvent(
        "raft_role_changed",
        "info",
        "Follower, candidate or leader among the controllers, and of which term. A candidate has heard no leader.",
        "Where terms rise often: look at network, CPU and disks of the controllers.",
    ),
    LogEvent("controller_active", "info", "This controller decides from now on."),
    LogEvent(
        "metadata_went_back",
        "error",
        "A replica server has seen newer metadata than the controllers have: their stores were restored from an old"
        " copy. Nothing is decided any more.",
        "Rescue one controller: procedures.md, The metadata have gone back.",
    ),
    LogEvent("controller_stepped_down", "info", "It decides no more; what waited for it was refused.", WAIT),
    LogEvent("transfer_failed", "info", "Leadership among the controllers did not go to target in time.", WAIT),
    LogEvent("controller_promoted", "info", "A controller has caught up and gets its vote."),
    LogEvent("controller_left", "info", "A controller was taken out of the group."),
    LogEvent(
        "controller_store_lost",
        "warning",
        "A voting controller answers with another store than the one that voted: its disk was lost or replaced.",
        "tidelog controllers add takes it in again.",
    ),
    LogEvent(
        "raft_store_lost",
        "error",
        "This controller's store is empty, and the group knows it with another: it has no vote.",
        "tidelog controllers add takes it in again.",
    ),
    LogEvent(
        "raft_store_damaged",
        "error",
        "The store was damaged and put aside (kept_as); it begins again without a vote.",
        "What next_step says: tidelog controllers add. Look at the medium.",
        counted=False,
    ),
    LogEvent(
        "raft_store_rolled_back",
        "error",
        "This controller's disk is an old copy: it lacks entries that it had acknowledged. It has no vote.",
        "Nothing: the active controller refills it. Find out where the old disk came from.",
    ),
    LogEvent("raft_store_refilled", "info", "The active controller has refilled the old copy: it votes again."),
    LogEvent(
        "controller_rolled_back",
        "warning",
        "A controller answers from an old copy of its disk; it counts again from refill_to on.",
        "Nothing: it is refilled. Until then one more failure may stop the controllers.",
    ),
    LogEvent("controller_refilled", "info", "That controller counts again."),
    LogEvent(
        "raft_disk_needed",
        "error",
        "No leader can be elected: the disks of rolled_back are old copies, and those in needed do not answer.",
        "Start the needed controllers with the disks that they had; if those are gone: tidelog controllers rescue.",
    ),
    LogEvent("snapshot_taken", "info", "The metadata were written as a whole; the log before can go."),
    LogEvent("snapshot_installed", "info", "It was so far behind that it took over the leader's snapshot."),
    LogEvent("snapshot_damaged", "warning", "A snapshot arrived damaged and is sent again.", "Look at the network."),
    LogEvent("server_registered", "info", "A replica server began a life: after a start, or for the first time."),
    LogEvent(
        "server_fenced",
        "warning",
        "A replica server was not heard of for a session, or ended: it leads nothing and leaves in-sync sets.",
        "Start it, or see its log.",
    ),
    LogEvent("server_unfenced", "info", "It was heard of again."),
    LogEvent("server_draining", "info", "It is to lead nothing: tidelog servers drain."),
    LogEvent("server_undrained", "info", "It may lead again: tidelog servers resume."),
    LogEvent("server_forgotten", "info", "It is none of the cluster any more: tidelog servers forget."),
    LogEvent("feature_level", "info", "The cluster's feature level was raised: tidelog features raise."),
    LogEvent("topic_created", "info", "A topic was created."),
    LogEvent("topic_changed", "info", "Settings of a topic were changed."),
    LogEvent("topic_grown", "info", "A topic has more partitions."),
    LogEvent("topic_deleted", "info", "A topic was deleted, with its data."),
    LogEvent("access_changed", "info", "Tokens, rules or quotas were changed."),
    LogEvent("ticket_key_added", "info", "Tickets of producer ids are signed with another key from now on."),
    LogEvent("partition_leader_elected", "info", "Another leader, or the same in a new leader epoch; see cause."),
    LogEvent(
        "partition_offline",
        "error",
        "Nobody can lead the partition: who has everything committed is not live.",
        "Start the servers that tidelog why TOPIC/PARTITION names.",
    ),
    LogEvent(
        "partition_sealing",
        "info",
        "A leader is elected as soon as enough replicas have told how far their logs reach (commit rule quorum, or"
        " after a rescue).",
    ),
    LogEvent(
        "partition_isr_shrunk",
        "warning",
        "A replica left the in-sync set: it lags, or its server ended; see cause.",
        "Start it, or find what slows it down, if it does not come back.",
    ),
    LogEvent("partition_isr_expanded", "info", "A replica has caught up and is in sync."),
    LogEvent("partition_isr_changed", "info", "One replica left the in-sync set, another came."),
    LogEvent(
        "partition_isr_refused", "info", "A leader's wish for another in-sync set was refused: it was late.", WAIT
    ),
    LogEvent("partition_elr_changed", "info", "Other replicas than before may lead without being in sync."),
    LogEvent(
        "partition_copy_lost",
        "error",
        "A server has lost its copy of the partition, and makes no promise for it any more.",
        "See that server's log, and Damage above.",
    ),
    LogEvent(
        "partition_tail_doubtful",
        "warning",
        "The end of a copy's log is doubtful after a power loss: it counts for nothing until the others were asked.",
        WAIT,
    ),
    LogEvent("partition_tail_settled", "info", "The end of a copy's log is settled; it counts again."),
    LogEvent("partition_tail_given_up", "info", "A copy fetches the end of its log again from the leader."),
    LogEvent(
        "partition_records_possibly_lost",
        "error",
        "A server cut off records that may have been committed: an unclean election, commit_rule=leader, or a"
        " doubtful tail.",
        "tidelog why TOPIC/PARTITION says which offsets, and why.",
    ),
    LogEvent(
        "partition_records_lost",
        "error",
        "A server cut off committed records, after an unclean election or with commit_rule=leader.",
        "tidelog why TOPIC/PARTITION says which offsets, and why.",
    ),
    LogEvent("partition_replicas_changed", "info", "The partition has other replicas: a reassignment is done."),
    LogEvent("partition_reassignment_began", "info", "The partition moves to other replicas."),
    LogEvent(
        "more_partitions_changed",
        "info",
        "So many others changed with those of the lines before; tidelog why has each of them.",
    ),
    LogEvent("partition_transfer_began", "info", "Leadership is to go to another replica, without loss."),
    LogEvent("partition_transfer_withdrawn", "info", "That replica could not take over in time; the leader goes on."),
    LogEvent("partition_learners_changed", "info", "Other servers hold copies that do not count."),
    LogEvent("partition_last_leader_forgotten", "info", "The last leader has lost its copy: it leads no more."),
    LogEvent("partition_read_only", "info", "The partition takes no records: tidelog topics set-readonly."),
    LogEvent("partition_writable", "info", "It takes records again."),
    LogEvent("partition_paused", "info", "Nothing is written, read or copied: tidelog topics pause."),
    LogEvent("partition_resumed", "info", "It is in use again."),
    LogEvent(
        "timeline_ahead",
        "error",
        "The topic __timeline tells of more than the controllers know: their metadata are from an older copy.",
        "Nothing is written to the timeline until somebody has looked; see What happened, above.",
    ),
    LogEvent("peer_up", "info", "The link to another controller is open."),
    LogEvent("peer_down", "info", "It broke.", WAIT),
    LogEvent(
        "peer_failed",
        "warning",
        "Another controller or a replica server cannot be reached or refuses; error says why. Told once.",
        "Start it; or look at addresses, network, certificates.",
    ),
    LogEvent(
        "protocol_fault", "warning", "A peer sent what no correct one sends; it was let go.", "Find out what it is."
    ),
)
REPLICA = (
    LogEvent("replica_started", "info", "It listens, and registers.", counted=False),
    LogEvent(
        "encryption_keys",
        "info",
        "Which keys the segments are encrypted with, and how many were wrapped anew.",
        "Keys that no segment uses can be thrown away.",
        counted=False,
    ),
    LogEvent("registered", "info", "The controllers know this life of the server, by its broker epoch."),
    LogEvent(
        "registration_refused",
        "error",
        "Another process has this server's name, and is heard of.",
        "End one of them. After a move to another machine it takes a session time-out.",
    ),
    LogEvent(
        "leadership_unconfirmed",
        "error",
        "No controller answers, and a server that they could elect (voter) does not confirm leaders here. The clients"
        " of these leaders are refused. Written once for each such voter.",
        "Start controllers until a majority runs, and the server that voter names.",
    ),
    LogEvent(
        "topic_deleted_meanwhile",
        "warning",
        "The topic was deleted while no controller answered this server. Records were committed here meanwhile, from"
        " offset start up to end, and are gone with the topic.",
        "Send these records to another topic, if they matter and their source still has them.",
    ),
    LogEvent(
        "settings_changed_meanwhile",
        "warning",
        "Settings of the topic changed while no controller answered this server. Records were committed here"
        " meanwhile, from offset start up to end, under the former settings.",
        "See changes: the former settings may have asked for fewer copies of these records, or kept them for a"
        " shorter time.",
    ),
    LogEvent("life_ended", "warning", "The controllers know a later life of this server: it registers again.", WAIT),
    LogEvent(
        "controller_failed",
        "warning",
        "A controller cannot be reached or refuses; error says why. Told once for each.",
        "Start it; or look at controllers=, network, certificates.",
    ),
    LogEvent(
        "peer_failed",
        "warning",
        "Another replica server cannot be reached or refuses; error says why. Told once for each.",
        "Start it; or look at its advertised_url, network, certificates.",
    ),
    LogEvent("leader_became", "info", "It leads a partition from now on."),
    LogEvent("follower_became", "info", "It follows another leader of a partition."),
    LogEvent(
        "leadership_refused",
        "error",
        "It was named leader of a partition that it must not lead: not in sync, or of an old leader epoch.",
        "Report it: the controllers should know better.",
    ),
    LogEvent("leader_suspected", "warning", "A leader does not answer; the controllers are told.", WAIT),
    LogEvent("partition_unassigned", "info", "It is no replica of the partition any more; the files stay."),
    LogEvent("partition_deleted", "info", "The files of a deleted partition are gone."),
    LogEvent("partition_paused", "info", "All of the log is durable, and it is closed."),
    LogEvent(
        "delete_failed",
        "warning",
        "The files of a partition could not be deleted; the server tries again after a pause, and at the next start.",
        "See reason: rights, the medium.",
    ),
    LogEvent("logs_opened", "info", "All logs are open."),
    LogEvent("partition_offline", "error", "The partition serves nobody on this server; see reason.", "See Damage."),
    LogEvent(
        "log_damaged", "error", "A segment, or the whole log (-1), is damaged.", "See Damage: it repairs itself."
    ),
    LogEvent(
        "segment_quarantined", "warning", "A damaged segment was set aside.", "See Damage: keep it until all is well."
    ),
    LogEvent(
        "segment_repaired", "info", "The hole has been filled from the leader.", "Delete the .quarantined file."
    ),
    LogEvent("hole_retired", "info", "Retention has taken meanwhile what the hole held."),
    LogEvent(
        "committed_records_missing",
        "error",
        "The log opens without its committed end, which is to come from a leader.",
        "See Damage: bring the other replicas back.",
    ),
    LogEvent(
        "log_doubtful",
        "warning",
        "A bad batch stands above the recovery mark, torn or damaged later: the other replicas are asked.",
        "See Damage: bring the other replicas back.",
    ),
    LogEvent("doubt_settled", "info", "The end of the log is settled, and the log is opened."),
    LogEvent(
        "records_possibly_lost",
        "error",
        "Records that may have been committed were cut off: an unclean election, commit_rule=leader, or a doubtful"
        " tail.",
        "tidelog why TOPIC/PARTITION says which.",
    ),
    LogEvent("copy_restarted", "warning", "The copy starts over, from where the leader's log begins.", "See Damage."),
    LogEvent("log_truncated", "info", "Records that the leader does not have were cut off, to agree with it."),
    LogEvent(
        "committed_records_lost",
        "error",
        "Committed records were cut off: an unclean election, or commit_rule=leader.",
        "tidelog why TOPIC/PARTITION says which.",
    ),
    LogEvent(
        "producers_forgotten",
        "warning",
        "Damage hides what idempotent producers wrote before the log start; the log is whole.",
        "See Damage: let another copy lead.",
    ),
    LogEvent(
        "fetched_data_refused",
        "warning",
        "What the leader sent does not fit this log, or is damaged; it is asked for again.",
        "If it stays: tidelog verify replicas; look at the leader's memory and disk.",
    ),
    LogEvent("disk_stalled", "warning", "A sync takes too long: others are to lead.", "Find what stalls the disk."),
    LogEvent("disk_answers", "info", "The sync has ended after all."),
    LogEvent("disk_full", "error", "The disk is full: no records are taken.", "Make room; see A full disk."),
    LogEvent("disk_roomy", "info", "There is room again, and records are taken."),
    LogEvent("reserve_failed", "warning", "The reserve cannot be made; tried again.", "See reason: room, quota."),
    LogEvent(
        "discard_failed",
        "error",
        "After a failed sync what is in doubt could not be cut off either; the next start does it.",
        "Look at the medium.",
    ),
    LogEvent(
        "distrust_failed",
        "error",
        "The disk takes not even the note that the next life must not trust it. The process stays until it does.",
        "Free space, or restart the machine.",
    ),
    LogEvent("close_failed", "error", "The end was not in order: the next life is not clean.", "Look at the medium."),
    LogEvent("closed", "info", "The end was in order, if clean=True."),
    LogEvent("log_start_moved", "info", "The oldest records are gone: by retention, or with the leader."),
    LogEvent(
        "retention_wait_ended",
        "warning",
        "Records were deleted that a group had not read for which retention waits: the bound of the wait is passed.",
        "See 'Retention that waits for a group'.",
    ),
    LogEvent("log_compacted", "info", "Compaction has written segments anew; how much it saved."),
    LogEvent("compaction_without_room", "warning", "No room to write a segment anew; it waits.", "Make room."),
    LogEvent("scrubbed", "info", "All segments were read again, as far as they were synced, and checked."),
    LogEvent(
        "scrub_failed", "warning", "A segment could not be read, for want of rights or descriptors.", "See reason."
    ),
    LogEvent(
        "unreadable_batches",
        "warning",
        "A segment has batches that no reader can decode, though they are whole: their producer wrote them so.",
        "See 'Batches that cannot be decoded'.",
    ),
    LogEvent(
        "copies_differ",
        "error",
        "Copies of a partition differ. odd names those that differ from a majority of the replicas.",
        "See 'Copies that differ'.",
    ),
    LogEvent("copies_agree", "info", "Copies that differed are equal again."),
    LogEvent(
        "odd_copy_given_up",
        "warning",
        "This server's copy is the odd one: the segment with the first difference is fetched again from the leader.",
        "Find out what has changed the disk; see 'Copies that differ'.",
    ),
    LogEvent(
        "odd_copy_kept",
        "warning",
        "This server's copy is the odd one, and must not be given up now. It is compared again.",
        "See reason, and 'Copies that differ'.",
    ),
    LogEvent("index_removed", "info", "An index was damaged; it is made again."),
    LogEvent("groups_coordinated", "info", "It coordinates the consumer groups of a partition of __groups."),
    LogEvent(
        "groups_unreadable",
        "error",
        "A record of __groups cannot be read: the groups of that partition have no coordinator here.",
        "Let another replica lead it: tidelog partitions transfer; tidelog verify replicas.",
    ),
    LogEvent("streams_coordinated", "info", "It coordinates the streams of a partition of __streams."),
    LogEvent(
        "streams_unreadable",
        "error",
        "A record of __streams cannot be read: the streams of that partition have no coordinator here.",
        "Let another replica lead it: tidelog partitions transfer; tidelog verify replicas.",
    ),
    LogEvent("transactions_coordinated", "info", "It coordinates the transactions of a partition of __transactions."),
    LogEvent(
        "transactions_unreadable",
        "error",
        "A record of __transactions cannot be read: the applications of that partition have no coordinator here.",
        "Let another replica lead it: tidelog partitions transfer; tidelog verify replicas.",
    ),
)
GATEWAY = (
    LogEvent("gateway_started", "info", "It knows the cluster, and listens.", counted=False),
    LogEvent("controller_link_up", "info", "The link to the active controller is open.", counted=False),
    LogEvent("replica_link_up", "info", "The link to a replica server is open.", counted=False),
    LogEvent(
        "controller_failed",
        "warning",
        "A controller cannot be reached or refuses; error says why. Told once for each.",
        "Start it; or look at controllers=, network, certificates.",
        counted=False,
    ),
    LogEvent(
        "peer_failed",
        "warning",
        "A replica server cannot be reached or refuses; error says why. Told once for each.",
        "Start it; or look at its advertised_url, network, certificates.",
        counted=False,
    ),
    LogEvent(
        "request_failed",
        "error",
        "A fault of ours: a request of a client (op, remote) could not be served. Its connection was closed.",
        "Report it, with the traceback.",
        counted=False,
    ),
    LogEvent(
        "http_connection_ended",
        "debug",
        "A connection of HTTP requests was lost while it was used; reason says how.",
        counted=False,
    ),
    LogEvent(
        "http_request_failed",
        "error",
        "A fault of ours: an HTTP request of a client (remote) could not be served. It was answered with status 500.",
        "Report it, with the traceback.",
        counted=False,
    ),
    LogEvent(
        "server_limited",
        "warning",
        "Acks of this replica server are late while batches queue at it: it is sent bytes_per_s at most, and"
        " producers are asked to pause. Written once, when the limit begins.",
        "Look at its disk, its CPU and its followers; see 'A server that is slow'.",
        counted=False,
    ),
    LogEvent(
        "server_limit_ended",
        "info",
        "This replica server is sent as much as clients produce again. It had a limit for so many seconds; reason"
        " says why that ended.",
        counted=False,
    ),
    LogEvent(
        "client_refused",
        "warning",
        "There is no room for another client; reason says which bound. A line for each address and minute;"
        " suppressed: so many more were not written.",
        "More gateways, or a higher client_max_connections; see whether one address or principal has too many.",
        counted=False,
    ),
    LogEvent(
        "authentication_failed",
        "warning",
        "A client showed no token, or one that is not good. A line for each address and minute; suppressed: so many"
        " more were not written.",
        "Where it is one of yours: give it a token. Where not: see who it is (remote).",
        counted=False,
    ),
    LogEvent(
        "issuer_keys_changed",
        "info",
        "The keys of the tokens' issuer (oidc.jwks) were read for the first time, or are others than before.",
        counted=False,
    ),
    LogEvent(
        "issuer_keys_not_read",
        "warning",
        "The keys of the tokens' issuer could not be read, or are none. The former ones stay in force for"
        " oidc.max_age_s; without any no token of the issuer is taken.",
        "See whether the gateway reaches oidc.jwks, and what is there.",
        counted=False,
    ),
    LogEvent(
        "client_asks_for_much",
        "warning",
        "The requests of this principal cost a gateway much in the last seconds; op is the one that cost most. Others"
        " are served in between. At most one line a minute for each principal.",
        "Have it ask less often, or for less; or bound it: tidelog quotas set PRINCIPAL --requests N.",
        counted=False,
    ),
    LogEvent(
        "client_sent_away",
        "info",
        "A client's token was revoked or expired, or it may not read any more what it reads.",
        counted=False,
    ),
    LogEvent(
        "audit_not_written",
        "warning",
        "Records for __audit wait; they are tried again.",
        "See error: the topic's partition has no leader, or too few replicas.",
        counted=False,
    ),
    LogEvent("leaving", "info", "It ends, and lets its clients go.", counted=False),
    LogEvent("left", "info", "All clients are gone.", counted=False),
)
BY_SERVICE = {"controller": CONTROLLER, "replica": REPLICA, "gateway": GATEWAY}

PIPELINE = (
    LogEvent(
        "pipeline_started",
        "info",
        "A pipeline begins, and starts Spark; status: where it shows its pages.",
        counted=False,
    ),
    LogEvent(
        "pipeline_output_started", "info", "The query of an output runs; restarts: so many before.", counted=False
    ),
    LogEvent(
        "pipeline_output_progressed",
        "info",
        "Rows that the output has read since the last such line, at most one a minute, and its lag in offsets.",
        counted=False,
    ),
    LogEvent("pipeline_output_ended", "info", "The output has read everything that was there.", counted=False),
    LogEvent(
        "pipeline_output_stopped",
        "info",
        "The output was ended, because another failed or the command was interrupted.",
        counted=False,
    ),
    LogEvent(
        "pipeline_output_not_stopped",
        "warning",
        "Spark refused to stop the query of an output, or did not answer: it may run on.",
        "End the process of the pipeline, if it is still there: its queries end with it.",
        counted=False,
    ),
    LogEvent(
        "pipeline_output_restarts",
        "warning",
        "The query of an output has ended with an error, and is started again in in_s seconds, at its checkpoint.",
        "Nothing, unless it comes often: see error.",
        counted=False,
    ),
    LogEvent(
        "pipeline_output_has_manifest",
        "warning",
        "Programs that read the files of this output without its manifest also see those that are not committed yet,"
        " or never will be.",
        "Read the files that tidelog.tables.manifest.read_manifest lists.",
        counted=False,
    ),
    LogEvent(
        "pipeline_output_failed",
        "error",
        "An output has given up; reason says why it is not started again.",
        "See error: put right what it names, and run the pipeline again. It goes on at its checkpoint.",
        counted=False,
    ),
    LogEvent(
        "pipeline_ended", "info", "A pipeline has ended; failed: its outputs that have given up.", counted=False
    ),
)
"""Lines of ``tidelog pipeline run``."""
_LEVELS: dict[str, Level] = {}
for _event in (*ANY, *CONTROLLER, *REPLICA, *GATEWAY, *PIPELINE):
    _known = _LEVELS.setdefault(_event.name, _event.level)
    assert _known == _event.level, f"{_event.name} has two levels"


def level_of(name: str) -> Level:
    """Return the level at which lines of this event are logged; ``info`` if the table does not have the event."""
    return _LEVELS.get(name, "info")


def counted(table: tuple[LogEvent, ...], counts: dict[str, int]) -> dict[str, int]:
    """Return the numbers of logged lines by event, ``counts``, with a 0 added for each warning and error of the table
    that was not logged yet, so that a monitor sees the first one as an increase. Events that are not ``counted`` get
    no 0."""
    return {event.name: 0 for event in table if event.counted and event.level != "info"} | counts

"""The coordinator of the transactions of one partition of ``__transactions``, for one leader epoch of the partition.

A transaction is identified by its application (transactional id) and, if it is one of many that are *staged*, by the
name that its worker chose. Its batches carry its producer id and epoch. (KIP-98. The epoch rises with every
transaction, as in KIP-890, so that no late batch can be taken for part of the next transaction.)

    begin       [nothing | committed | aborted] -> open      a new epoch. An open transaction is aborted first: its
                                                             writer is fenced, and the new one must come again
                                                             (``TRANSACTION_ENDING``)
    renew       open                                         the timeout begins again, up to a bound from the begin on
    enrol       open                                         a leader asks before it accepts the first batch; from
                                                             then on the partition is part of the transaction
    prepare     open -> prepared                             only if staged: no more partitions are enrolled
    end         open | prepared -> aborting                  also when the timeout is over
                open -> committing                           decided, for good
    commit      many prepared -> committing                  by one record, that of the application, which also stores
                                                             the number of the batch: a batch is committed once
    (markers)   committing -> committed                      when every partition has the marker in its committed log
                aborting -> aborted                          a staged transaction is deleted then

All its state is in the log, as with groups: no request is answered before its records are committed, and no marker is
sent before its decision is committed (``on_committed``). So the next coordinator finds every decision that anyone may
know of, and finishes it: markers may be sent twice. A server that is no coordinator any more sends no marker that the
next one would not send.

Invariants: an epoch ends in one way. A marker is sent only for a committed decision. A transaction ends only when all
its partitions have the marker, so no log holds two transactions of one producer at a time. For each application a
batch is committed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from tidelog.errors import TidelogError, refuse
from tidelog.principal_bounds import refuse_excess
from tidelog.sansio.timers import Timers
from tidelog.types import TopicPartition, owner_of
from tidelog.wire.messages import (
    AbortStaged,
    BeginTransaction,
    CommitStaged,
    Done,
    EndTransaction,
    EnrolPartition,
    InitTaskProducer,
    ListTransactions,
    Message,
    PrepareTransaction,
    StagedCommitted,
    TaskProducer,
    TransactionBegun,
    TransactionEnded,
)

from tidelog_replica.config import TransactionSettings
from tidelog_replica.coordinators.groups.records import Entry, partitions_of
from tidelog_replica.coordinators.tally import Tally
from tidelog_replica.coordinators.transactions.records import (
    AppRecord,
    ProducerRecord,
    StoredTransactions,
    app_entry,
    producer_entry,
    slot_entry,
)
from tidelog_replica.coordinators.transactions.task_producers import record_of_batch
from tidelog_replica.coordinators.transactions.transaction import (
    ENDED,
    ENDING,
    LIVE,
    MAX_STAGED,
    Marker,
    TransactionMetadata,
    check_begin,
    check_name,
    check_owner,
    describe,
)

REQUESTS = (
    BeginTransaction,
    EndTransaction,
    PrepareTransaction,
    CommitStaged,
    AbortStaged,
    EnrolPartition,
    InitTaskProducer,
)
KINDS = (*REQUESTS, ListTransactions)
MAX_EPOCH = (1 << 16) - 2
"""The marker of the last transaction of a producer id begins another epoch."""
SWEEP_S = 60.0
"""Pause between two searches for unused transactional ids, in seconds."""
SOON_S = 0.001
"""Pause in seconds before the end of a transaction is written for which a request waits. All that have ended by then
are written together."""
LATER_S = 0.1
"""Pause in seconds before any other transaction's end is written. The next transaction of the same name, if it begins
before, causes one write for both. The end of a staged transaction does not wait. If a new coordinator finds no end in
the log it sends the markers again, which changes nothing."""
POSTPONED_S = 1.0
"""Pause in seconds after which due timers are checked again while no records can be appended."""
SWEEP = "sweep"
"""Key of the timer of the search for unused transactional ids."""


class Applications:
    """The transactional ids (*applications*) of a coordinator and their owners, for the bounds per principal
    (``tidelog.principal_bounds``).

    An application exists as long as any record of it is kept: a transaction, its committed batches, or the producers
    of its tasks. It belongs to the principal of its first record. The coordinator calls ``hold`` for each record that
    it makes and ``release`` for each one that it deletes."""

    def __init__(self) -> None:
        self._records: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self.tally = Tally()
        """Number of applications that each principal has."""

    def __contains__(self, app: str) -> bool:
        return app in self._records

    def owner(self, app: str) -> str:
        """Return the principal that the application belongs to; "" if the principal or the application is not
        known."""
        return self._owners.get(app, "")

    def hold(self, app: str, principal: str) -> None:
        """Count one more record of the application. With the first record the application begins: it belongs to
        ``principal`` and counts for its bound."""
        if principal and app not in self._records:
            self._owners[app] = principal
            self.tally.add(principal)
        self._records[app] = self._records.get(app, 0) + 1

    def release(self, app: str) -> None:
        """Count one record of the application less. With the last record the application ends and no longer counts
        for its principal. Raises ``KeyError`` if the application has no record."""
        self._records[app] -= 1
        if not self._records[app]:
            del self._records[app]
            self.tally.drop(self._owners.pop(app, ""))


class TransactionCoordinator:
    """The coordinator of all transactions of one partition of ``__transactions``, as long as this server leads the
    partition. It does no I/O: the caller appends the records of ``take_entries`` to the log, sends the markers of
    ``take_markers`` and the answers. ``now`` is the caller's clock in seconds, ``wall_ms`` the wall clock in ms since
    1970."""

    def __init__(self, settings: TransactionSettings) -> None:
        self.slots: dict[tuple[str, str], TransactionMetadata] = {}
        """Transactions by application and staged name ("" if the transaction is not staged)."""
        self.apps: dict[str, AppRecord] = {}
        """The committed batches of each application."""
        self.task_producers: dict[str, ProducerRecord] = {}
        """The producers of each application's latest numbered batch (``task_producers.py``)."""
        self._producers: dict[int, TransactionMetadata] = {}
        """Transactions by producer id."""
        self._applications = Applications()
        self._active: dict[tuple[str, str], float] = {}
        """When an owner last began or renewed a staged transaction, by application and owner, in seconds."""
        self._open: dict[str, dict[int, None]] = {}
        """The producer ids of the transactions that are not over, by principal."""
        self._settings = settings
        self._timers: Timers[Hashable] = Timers()
        self._entries: list[Entry] = []
        self._undecided: list[TransactionMetadata] = []
        """Transactions whose decision is recorded in an entry that is not appended to the log yet."""
        self._uncommitted: list[TransactionMetadata] = []
        """Transactions whose decision is in the log and not known to be committed, in the order of the log."""
        self._to_mark: dict[tuple[str, str], TransactionMetadata] = {}
        """Transactions whose markers ``take_markers`` returns next."""
        self.finished: list[tuple[tuple[str, str], str]] = []
        """Transactions that have ended since the owner emptied the list: application and staged name, and
        ``committed`` or ``aborted``."""

    def load_records(self, stored: StoredTransactions, end: int, now: float, wall_ms: int) -> None:
        """Restore all transactions from the contents of the log, whose end is offset ``end``. An undecided
        transaction gets the rest of its timeout; for a decided one the markers are sent again. Called one time,
        before all other methods."""
        self.apps = dict(stored.apps)
        self.task_producers = dict(stored.producers)
        for app, batches in self.apps.items():
            self._applications.hold(app, batches.principal)
        for app, producers in self.task_producers.items():
            self._applications.hold(app, producers.principal)
        for (app, staged), record in stored.slots.items():
            known = self.apps.get(app)
            state = record.state
            if known is not None and known.deciding.get(staged) == record.producer_id:
                state = "committing"
            left_ms = max(1, min(record.until_ms - wall_ms, self._patience_ms(state, record.timeout_ms)))
            slot = TransactionMetadata(
                app,
                staged,
                record.producer_id,
                record.epoch,
                state,
                record.owner,
                record.timeout_ms,
                record.until_ms if state == record.state else wall_ms,
                now + left_ms / 1000,
                dict.fromkeys(sorted(partitions_of(record.parts))),
                principal=record.principal,
            )
            self._applications.hold(app, record.principal)
            self.slots[slot.key] = self._producers[slot.producer_id] = slot
            if state in LIVE + ENDING:
                self._count(slot)
            if state in ENDING:
                slot.left, slot.decided_at = dict(slot.parts), end
                self._uncommitted.append(slot)
            elif state in LIVE:
                self._timers.set(slot.key, slot.expires_at)
        self._timers.set(SWEEP, now + SWEEP_S)

    def _patience_ms(self, state: str, timeout_ms: int) -> int:
        """Return how long a transaction may stay in ``state`` before it is aborted, in ms. ``timeout_ms`` is that of
        the open transaction."""
        return self._settings.staged_timeout_ms if state == "prepared" else timeout_ms

    # --- the log -----------------------------------------------------------------------------------------

    def take_entries(self) -> list[Entry]:
        """Return the records of all changes since the last call, in order, and forget them. The caller must append
        them to the log before it sends any answer. An empty list if nothing has changed."""
        entries, self._entries = self._entries, []
        return entries

    def on_written(self, end: int) -> None:
        """Record that the entries that ``take_entries`` last returned were appended, so that the log ends at offset
        ``end``. The decisions in them take effect when the log is committed up to there."""
        for slot in self._undecided:
            slot.decided_at = end
        self._uncommitted += self._undecided
        self._undecided = []

    def on_committed(self, high_watermark: int) -> None:
        """Record that the log is committed up to ``high_watermark`` (exclusive). Decisions below it are final:
        ``take_markers`` returns their markers next. Does nothing if no decision waits for that."""
        while self._uncommitted:
            slot = self._uncommitted[0]
            assert slot.decided_at is not None
            if slot.decided_at > high_watermark:
                return
            del self._uncommitted[0]
            slot.is_decided = True
            self._to_mark[slot.key] = slot
            self._discount(slot)

    # --- markers -----------------------------------------------------------------------------------------

    def take_markers(self, now: float) -> list[Marker]:
        """Return the markers to be sent to the leaders of partitions now: those of decisions that have become final,
        and those to be sent again. The caller reports the outcome of each with ``on_marker``. An empty list if there
        are none."""
        to_mark, self._to_mark = self._to_mark, {}
        markers: list[Marker] = []
        for slot in to_mark.values():
            for partition in [partition for partition in slot.left if partition not in slot.asked]:
                slot.asked[partition] = None
                commit = slot.state == "committing"
                markers.append(Marker(slot.app, slot.staged, partition, slot.producer_id, slot.epoch, commit))
            if not slot.left:
                self._timers.set(slot.key, now + SOON_S)
        return markers

    def on_marker(self, marker: Marker, done: bool, now: float, *, awaited: bool = False) -> None:
        """Record the outcome of sending a marker. ``done``: the marker is in the committed log of its partition.
        After a transaction's last marker, a timer is set to write its end; it is short if ``awaited``, since a
        request waits for the end. If not done, the marker is sent again after a pause. Does nothing if the
        transaction has ended or another has begun under its name."""
        slot = self.slots.get((marker.app, marker.staged))
        if slot is None or (slot.producer_id, slot.epoch) != (marker.producer_id, marker.epoch):
            return
        slot.asked.pop(marker.partition, None)
        if done:
            slot.left.pop(marker.partition, None)
            self._discount(slot)
        if not slot.left:
            self._timers.set(slot.key, now + (SOON_S if awaited or slot.staged else LATER_S))
        elif not done:
            self._timers.set(slot.key, now + self._settings.retry_ms / 1000)

    def decided_by(self, asked: Message) -> list[TransactionMetadata]:
        """Return the transactions that the request ``asked`` has committed and whose markers are not all confirmed;
        an empty list if there are none, or if the request is none to commit."""
        if isinstance(asked, EndTransaction) and asked.commit:
            found = [self._producers.get(asked.producer_id)]
        elif isinstance(asked, CommitStaged):
            found = [self.slots.get((asked.app, name)) for name in dict.fromkeys(asked.staged)]
        else:
            return []
        return [slot for slot in found if slot is not None and slot.state == "committing" and slot.left]

    # --- time --------------------------------------------------------------------------------------------

    def on_tick(self, now: float, wall_ms: int) -> None:
        """Do all that is due. Abort transactions whose timeout is over, write the ends of those whose markers are
        confirmed, queue markers to be sent again, delete unused transactional ids. ``take_entries`` and
        ``take_markers`` then return the results; ``deadline`` is later than ``now``."""
        for key in self._timers.pop_due(now):
            self._on_timer(key, now, wall_ms)

    def _on_timer(self, key: Hashable, now: float, wall_ms: int) -> None:
        """Handle one due timer: search for unused transactional ids; or abort a transaction whose timeout is over,
        write the end of one whose markers are confirmed, or queue the missing markers of a decided one to be sent
        again. Does nothing for a transaction that was deleted."""
        if key == SWEEP:
            self._sweep(now, wall_ms)
            self._timers.set(SWEEP, now + SWEEP_S)
            return
        slot = self.slots.get(key) if isinstance(key, tuple) else None
        if slot is None:
            return
        if slot.state in LIVE:
            if slot.expires_at <= now and not self._prolong(slot):
                self._decide(slot, "aborting", wall_ms)
            else:
                self._timers.set(key, slot.expires_at)
        elif slot.is_over:
            self._finish(slot, wall_ms)
        elif slot.state in ENDING and slot.is_decided:
            self._to_mark[slot.key] = slot

    def _prolong(self, slot: TransactionMetadata) -> bool:
        """Let a prepared transaction that is due to expire wait on if its owner has begun or renewed another one of
        the application since: the batch is in progress. It then expires ``staged_timeout_ms`` after that, but all
        that it waits longer counts as time for which it is open (``open_max_ms``), so that nobody can hold up readers
        for ever. Return whether it waits on."""
        active = self._active.get((slot.app, owner_of(slot.staged)))
        if slot.state != "prepared" or active is None:
            return False
        wanted_ms = round((active - slot.expires_at) * 1000) + self._settings.staged_timeout_ms
        longer_ms = min(wanted_ms, self._settings.open_max_ms - slot.timeout_ms)
        if longer_ms <= 0:
            return False
        slot.timeout_ms += longer_ms
        slot.expires_at += longer_ms / 1000
        slot.until_ms += longer_ms
        self._write(slot)
        return True

    def _note_activity(self, staged: str, app: str, now: float) -> None:
        """Remember that an owner makes progress with its batch. Does nothing for a transaction without an owner."""
        if owner := owner_of(staged):
            self._active[app, owner] = now

    def postpone(self, now: float) -> None:
        """Move all timers that are due ``POSTPONED_S`` ahead, since no records can be appended now."""
        for key in self._timers.pop_due(now):
            self._timers.set(key, now + POSTPONED_S)

    def deadline(self) -> float | None:
        """Return the earliest time at which ``on_tick`` has something to do, in seconds; None if no timer is set."""
        return self._timers.deadline()

    def _sweep(self, now: float, wall_ms: int) -> None:
        """Delete the ended transactions, the committed batches and the task producers that were not used for
        ``retention_ms``, and queue the deletion of their records."""
        patient_until = now - self._settings.staged_timeout_ms / 1000
        self._active = {key: at for key, at in self._active.items() if at > patient_until}
        before = wall_ms - self._settings.retention_ms
        for slot in [slot for slot in self.slots.values() if slot.state in ("committed", "aborted")]:
            if slot.until_ms < before:
                self._forget(slot)
        for app, record in list(self.apps.items()):
            if record.ms < before and not any(name in record.deciding for a, name in self.slots if a == app):
                del self.apps[app]
                self._applications.release(app)
                self._entries.append(app_entry(app, None))
        for app in [app for app, record in self.task_producers.items() if record.timestamp_ms < before]:
            del self.task_producers[app]
            self._applications.release(app)
            self._entries.append(producer_entry(app, None))

    # --- one transaction ---------------------------------------------------------------------------------

    def _write(self, slot: TransactionMetadata) -> None:
        """Queue the transaction's present state as a record for the log, which ``take_entries`` returns."""
        self._entries.append(slot_entry(slot.app, slot.staged, slot.record()))

    def _decide(self, slot: TransactionMetadata, state: str, wall_ms: int) -> None:
        """Decide the end of a transaction (``state``: ``committing`` or ``aborting``), and queue the record of the
        decision."""
        slot.decide(state, wall_ms)
        self._undecided.append(slot)
        self._write(slot)

    def _finish(self, slot: TransactionMetadata, wall_ms: int) -> None:
        """End a transaction whose markers are all confirmed: set it to ``committed`` or ``aborted``, add it to
        ``finished``, and queue its record. A staged transaction is deleted instead."""
        slot.state = ENDED[slot.state]
        self.finished.append((slot.key, slot.state))
        if slot.staged:
            self._forget(slot)
            return
        slot.parts, slot.until_ms = {}, wall_ms
        self._write(slot)

    def _forget(self, slot: TransactionMetadata) -> None:
        """Remove a transaction from memory, and queue the deletion of its record."""
        del self.slots[slot.key]
        self._applications.release(slot.app)
        self._producers.pop(slot.producer_id, None)
        self._entries.append(slot_entry(slot.app, slot.staged, None))

    # --- requests ----------------------------------------------------------------------------------------

    def handle(self, message: Message, now: float, wall_ms: int) -> Message | TidelogError:
        """Handle a request of ``KINDS``: change the transactions and return the answer, or return the error that
        refuses the request. The caller sends the answer only when the records of ``take_entries``, and all earlier
        ones, are committed. Even a refused ``BeginTransaction`` may have aborted the previous transaction."""
        if isinstance(message, ListTransactions):
            return describe(message, self.slots.values(), self.apps, self._settings.staged_timeout_ms)
        try:
            check_name(getattr(message, "app", ""))
            match message:
                case BeginTransaction(renew=True):
                    return self._renew(message, now)
                case BeginTransaction():
                    return self._begin(message, now, wall_ms)
                case EnrolPartition():
                    return self._enrol(message)
                case PrepareTransaction():
                    return self._prepare(message, now, wall_ms)
                case EndTransaction():
                    return self._end(message, wall_ms)
                case CommitStaged():
                    return self._commit(message, wall_ms)
                case AbortStaged():
                    return self._abort(message.app, message.staged, wall_ms)
                case InitTaskProducer():
                    return self._init_task_producer(message, wall_ms)
                case _:
                    raise refuse("UNSUPPORTED", f"a coordinator of transactions does not know {message.OP}")
        except TidelogError as error:
            return error

    def _renew(self, asked: BeginTransaction, now: float) -> TransactionBegun:
        """Extend an open transaction of the same owner by its timeout from ``now`` on, but not beyond ``open_max_ms``
        after its begin, and queue its record. Does nothing if it is prepared. Never begins one: raises
        ``UNKNOWN_TRANSACTION``, ``FENCED_PRODUCER`` or ``TRANSACTION_ABORTED`` if the owner has none any more."""
        check_begin(asked, self._settings)
        slot = self.slots.get((asked.app, asked.staged))
        if slot is None:
            raise refuse("UNKNOWN_TRANSACTION", f"{asked.app} has no transaction of this owner")
        if slot.owner != asked.owner:
            raise refuse("FENCED_PRODUCER", f"{asked.app} has begun another transaction: it is at epoch {slot.epoch}")
        if slot.state not in LIVE:
            raise self._too_late(slot)
        self._note_activity(asked.staged, asked.app, now)
        if slot.state == "open" and slot.renew(asked.timeout_ms, self._settings.open_max_ms, now):
            self._timers.set(slot.key, slot.expires_at)
            self._write(slot)
        return TransactionBegun(slot.producer_id, slot.epoch)

    def _begin(self, asked: BeginTransaction, now: float, wall_ms: int) -> TransactionBegun:
        """Begin a transaction in a new producer epoch, and return producer id and epoch. A request that the same
        owner repeats gets the same answer. An open transaction of another owner is aborted, and the request is
        refused with ``TRANSACTION_ENDING``, also while the previous transaction is ending. Raises
        ``INVALID_TRANSACTION``, ``LIMIT_EXCEEDED`` or ``OVERLOADED`` too."""
        limits = self._settings
        check_begin(asked, limits)
        slot = self.slots.get((asked.app, asked.staged))
        if slot is not None and slot.state in LIVE:
            if slot.owner == asked.owner:
                return TransactionBegun(slot.producer_id, slot.epoch)
            self._decide(slot, "aborting", wall_ms)
        elif slot is not None and slot.is_over:
            self._finish(slot, wall_ms)
            slot = self.slots.get(slot.key)
        if slot is not None and slot.state in ENDING:
            raise refuse("TRANSACTION_ENDING", f"the transaction of {asked.app} before is not at its end yet")
        if slot is None:
            self._check_room(asked.app, asked.principal)
        self._check_open(asked.principal)
        id, epoch = asked.producer_id, 0
        if slot is not None and slot.epoch < MAX_EPOCH:
            id, epoch = slot.producer_id, slot.epoch + 1
        if not id or (id in self._producers and self._producers[id] is not slot):
            raise refuse("INVALID_TRANSACTION", f"producer id {id} is none of its own")
        if slot is not None:
            self._producers.pop(slot.producer_id)
        else:
            self._applications.hold(asked.app, asked.principal)
        until_ms, until = wall_ms + asked.timeout_ms, now + asked.timeout_ms / 1000
        slot = TransactionMetadata(
            asked.app, asked.staged, id, epoch, "open", asked.owner, asked.timeout_ms, until_ms, until
        )
        slot.principal = asked.principal
        self._count(slot)
        self._note_activity(asked.staged, asked.app, now)
        self.slots[slot.key] = self._producers[id] = slot
        self._timers.set(slot.key, until)
        self._write(slot)
        return TransactionBegun(id, epoch)

    def _check_room(self, app: str, principal: str) -> None:
        """Check that the principal may have the application ``app``, and that the coordinator may keep one more
        record. Raises ``LIMIT_EXCEEDED`` or ``OVERLOADED``."""
        if app not in self._applications:
            held, most = self._applications.tally.of(principal), self._settings.principal_max_applications
            over = refuse_excess(
                principal, "applications", held, "settings.transactions.principal_max_applications", most
            )
            if over is not None:
                raise over
        known = len(self.slots) + len(self.apps) + len(self.task_producers)
        if known >= self._settings.max_transactions:
            raise refuse("OVERLOADED", f"the coordinator has {self._settings.max_transactions} transactions")

    def _check_open(self, principal: str) -> None:
        """Check that the principal may have one more open transaction. Raises ``LIMIT_EXCEEDED``."""
        held, most = len(self._open.get(principal, ())), self._settings.principal_max_open
        over = refuse_excess(principal, "open transactions", held, "settings.transactions.principal_max_open", most)
        if over is not None:
            raise over

    def _count(self, slot: TransactionMetadata) -> None:
        """Count the transaction as an open one of its principal. Does nothing if the principal is unknown."""
        if slot.principal:
            self._open.setdefault(slot.principal, {})[slot.producer_id] = None

    def _discount(self, slot: TransactionMetadata) -> None:
        """Stop counting the transaction as an open one of its principal if it ``is_over``: its decision is committed
        and every partition has its marker. Does nothing otherwise."""
        mine = self._open.get(slot.principal)
        if slot.is_over and mine is not None:
            mine.pop(slot.producer_id, None)
            if not mine:
                del self._open[slot.principal]

    def _find(self, app: str, producer_id: int, epoch: int) -> TransactionMetadata:
        """Return the application's transaction with that producer id and epoch. Raises ``UNKNOWN_TRANSACTION`` if
        there is none, ``FENCED_PRODUCER`` if the producer is at a later epoch."""
        slot = self._producers.get(producer_id)
        if slot is None or slot.app != app or epoch > slot.epoch:
            raise refuse("UNKNOWN_TRANSACTION", f"{app} has no transaction of producer {producer_id} epoch {epoch}")
        if epoch < slot.epoch:
            raise refuse("FENCED_PRODUCER", f"{app} has begun another transaction: it is at epoch {slot.epoch}")
        return slot

    def _enrol(self, asked: EnrolPartition) -> Done:
        """Make a partition part of an open transaction, and queue its record. Does nothing if the partition is part
        of it already. Raises ``TidelogError`` if the transaction is unknown, is not open, or has too many
        partitions."""
        slot = self._find(asked.app, asked.producer_id, asked.producer_epoch)
        if slot.state != "open":
            raise self._too_late(slot)
        partition = TopicPartition(asked.topic_id, asked.partition)
        if partition not in slot.parts:
            if len(slot.parts) >= self._settings.max_partitions:
                text = f"a transaction has at most {self._settings.max_partitions} partitions"
                raise refuse("INVALID_TRANSACTION", text)
            slot.parts[partition] = None
            self._write(slot)
        return Done()

    def _too_late(self, slot: TransactionMetadata) -> TidelogError:
        """Return the error for a request that comes after the transaction was decided, or prepared:
        ``TRANSACTION_ABORTED`` or ``INVALID_TRANSACTION``."""
        if slot.state in ("aborting", "aborted"):
            return refuse(
                "TRANSACTION_ABORTED", f"the transaction of {slot.app} is aborted: perhaps it took too long"
            )
        return refuse("INVALID_TRANSACTION", f"the transaction of {slot.app} is {slot.state}: it takes nothing more")

    def _prepare(self, asked: PrepareTransaction, now: float, wall_ms: int) -> Done:
        """Set an open staged transaction to ``prepared``: it accepts no more partitions, and waits up to
        ``staged_timeout_ms`` for its commit. Does nothing if it is prepared already. Raises ``TidelogError`` if it is
        unknown, is not staged, or is decided."""
        slot = self._find(asked.app, asked.producer_id, asked.producer_epoch)
        if not slot.staged:
            raise refuse("INVALID_TRANSACTION", "only staged transactions are prepared")
        if slot.state == "open":
            slot.state = "prepared"
            slot.until_ms = wall_ms + self._settings.staged_timeout_ms
            slot.expires_at = now + self._settings.staged_timeout_ms / 1000
            self._timers.set(slot.key, slot.expires_at)
            self._write(slot)
        elif slot.state != "prepared":
            raise self._too_late(slot)
        return Done()

    def _end(self, asked: EndTransaction, wall_ms: int) -> TransactionEnded:
        """Decide that an open transaction is committed or aborted, as requested, and return whether it is committed.
        A repeated request gets the same answer. A request to abort a transaction that was committed returns that it
        is committed, and one that is unknown counts as aborted. Raises ``TidelogError`` if a request to commit finds
        the transaction aborted, unknown, fenced or staged."""
        try:
            slot = self._find(asked.app, asked.producer_id, asked.producer_epoch)
        except TidelogError as error:
            if error.code == "UNKNOWN_TRANSACTION" and not asked.commit:
                return TransactionEnded(False)
            raise
        if slot.staged and asked.commit:
            raise refuse("INVALID_TRANSACTION", "staged transactions are committed together, by commit_staged")
        if slot.state in LIVE:
            self._decide(slot, "committing" if asked.commit else "aborting", wall_ms)
        committed = slot.state in ("committing", "committed")
        if asked.commit and not committed:
            raise self._too_late(slot)
        return TransactionEnded(committed)

    # --- numbered batches without a transaction ----------------------------------------------------------

    def _init_task_producer(self, asked: InitTaskProducer, wall_ms: int) -> TaskProducer:
        """Return producer id, epoch and timestamp for a task of a numbered batch; the first request of a batch begins
        it and queues its record. A producer id of 0 means that the request must be sent again with a block of new
        producer ids. Raises ``TidelogError``."""
        known = self.task_producers.get(asked.app)
        record = record_of_batch(known, asked, wall_ms)
        if record is None:
            return TaskProducer(0, 0, 0)
        if known is None:
            self._check_room(asked.app, asked.principal)
            self._applications.hold(asked.app, asked.principal)
        if record is not known:
            record = replace(record, principal=self._applications.owner(asked.app))
            self.task_producers[asked.app] = record
            self._entries.append(producer_entry(asked.app, record))
        return TaskProducer(record.first_id + asked.task, record.epoch, record.timestamp_ms)

    # --- what was staged ---------------------------------------------------------------------------------

    def _commit(self, asked: CommitStaged, wall_ms: int) -> StagedCommitted:
        """Commit all the staged transactions of a numbered batch, by one record. With ``alone`` the application's
        other staged transactions are aborted. If the batch was committed before, its transactions are aborted, and
        the answer carries ``True``. Raises ``UNKNOWN_TRANSACTION`` if a transaction is not prepared,
        ``INVALID_TRANSACTION`` for bad names, another owner, or a batch that is too old to be known, and
        ``LIMIT_EXCEEDED`` or ``OVERLOADED``."""
        names = tuple(dict.fromkeys(asked.staged))
        known = self.apps.get(asked.app, AppRecord((), 0, {}, 0))
        check_owner(asked, known)
        others = [name for app, name in self.slots if app == asked.app and name not in names] if asked.alone else []
        if asked.batch in known.done:
            self._abort(asked.app, (*names, *others), wall_ms)
            return StagedCommitted(True)
        if asked.batch < known.floor:
            text = f"batches of {asked.app} below {known.floor} may be committed or not: that is too long ago"
            raise refuse("INVALID_TRANSACTION", text)
        if len(names) > MAX_STAGED or "" in names:
            raise refuse("INVALID_TRANSACTION", f"1 to {MAX_STAGED} staged transactions are committed at a time")
        slots = [self.slots.get((asked.app, name)) for name in names]
        missing = [n for n, slot in zip(names, slots, strict=True) if slot is None or slot.state != "prepared"]
        if missing:
            text = f"not prepared, or not any more: {', '.join(missing[:5])}: stage batch {asked.batch} again"
            raise refuse("UNKNOWN_TRANSACTION", text, missing=len(missing))
        if asked.app not in self.apps:
            self._check_room(asked.app, asked.principal)
            self._applications.hold(asked.app, asked.principal)
        deciding = {n: id for n, id in known.deciding.items() if (asked.app, n) in self.slots}
        for slot in slots:
            assert slot is not None
            slot.decide("committing", wall_ms)
            self._undecided.append(slot)
            deciding[slot.staged] = slot.producer_id
        done = sorted((*known.done, asked.batch))
        floor = known.floor
        while len(done) > self._settings.batches_kept:
            floor = done.pop(0) + 1
        owner = self._applications.owner(asked.app)
        self.apps[asked.app] = record = AppRecord(tuple(done), floor, deciding, wall_ms, owner)
        self._entries.append(app_entry(asked.app, record))
        self._abort(asked.app, others, wall_ms)
        return StagedCommitted(False)

    def _abort(self, app: str, names: Iterable[str], wall_ms: int) -> Done:
        """Abort the named staged transactions that are open or prepared. Does nothing for the others."""
        for name in dict.fromkeys(names):
            slot = self.slots.get((app, name)) if name else None
            if slot is not None and slot.state in LIVE:
                self._decide(slot, "aborting", wall_ms)
        return Done()

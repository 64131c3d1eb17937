"""The scopes of ``raft_search.py``, and the broken rules that are noticed in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.types import NodeId
from tidelog_controller.raft.log import Entry


@dataclass(frozen=True, slots=True)
class Budget:
    """How often each kind of event may happen."""

    proposals: int = 0
    crashes: int = 0
    beats: int = 0
    quiets: int = 0
    """Leaders that step down because they hear no follower."""
    transfers: int = 0
    changes: int = 0
    disks: int = 0
    """Controllers that come back with their first disk."""


COSTS = tuple(Budget.__slots__)


@dataclass(frozen=True, slots=True)
class Scope:
    """The extent of a search, and its first state."""

    terms: int
    """The highest term of any server."""
    budget: Budget = Budget()
    pre_votes: bool = False
    voters: tuple[NodeId, ...] = ("c1", "c2", "c3")
    spares: tuple[NodeId, ...] = ()
    """The servers that are in no configuration."""
    changes: tuple[tuple[str, NodeId], ...] = ()
    """The changes that an operator may ask a leader for: "add" or "remove", and the server."""
    heard: int = 0
    """The first term of all servers."""
    logs: dict[NodeId, tuple[Entry, ...]] = field(default_factory=dict)
    """The first log of each server."""
    committed: tuple[Entry, ...] = ()
    """The committed part of it."""
    standing: tuple[NodeId, ...] = ()
    """Only these servers stand for election by themselves; (): all do."""


NO_OP, NEXT = Entry(1, 1, b""), Entry(1, 2, b"")
FIGURE_8 = Scope(4, heard=2, logs={"c1": (NO_OP, Entry(2, 1, b"1!")), "c2": (NEXT,)}, standing=("c1", "c2"))
"""Raft's figure 8 from (b) on, with three servers: c1 has led term 1 and c2 term 2; nothing is committed."""
SMALL = {
    "two terms": Scope(2),
    "a command and a crash": Scope(1, Budget(proposals=1, crashes=1)),
    "an addition": Scope(
        1, Budget(beats=2, changes=1), voters=("c1", "c2"), spares=("c3",), changes=(("add", "c3"),)
    ),
    "an old disk": Scope(1, Budget(disks=1)),
}
"""The scopes of ``make test``."""
LARGE = {
    "figure 8": FIGURE_8,
    "two terms and a command": Scope(2, Budget(proposals=1)),
    "two terms and a crash": Scope(2, Budget(crashes=1)),
    "a transfer": Scope(2, Budget(transfers=1)),
    "two terms and an old disk": Scope(2, Budget(disks=1), standing=("c1", "c3")),
}
"""The scopes of ``make model-check``."""
SEEN = {
    "vote_twice_in_a_term": "two terms",
    "vote_for_anybody": "two terms",
    "take_half_for_a_majority": "two terms",
    "commit_on_a_minority": "two terms",
    "lead_without_what_is_not_known_to_be_committed": "two terms",
    "forget_the_vote": "a command and a crash",
    "tell_before_it_is_durable": "a command and a crash",
    "vote_where_the_leader_is_known": "an old disk",
    "let_an_old_copy_vote": "two terms and an old disk",
    "commit_earlier_terms_by_counting": "figure 8",
    "take_entries_behind_any": "figure 8",
    "erase_what_an_old_message_does_not_know": "figure 8",
}
"""The scope in which each mutant is noticed."""

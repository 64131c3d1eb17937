"""Rules of Raft, broken: the paper's, the dissertation's, and what is ours about stores that were lost."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import partial

from tidelog.sansio.effects import Send
from tidelog.wire.messages import AppendResult
from tidelog_controller.metadata.client_sessions import ClientSessions
from tidelog_controller.raft.bootstrap import Bootstrap
from tidelog_controller.raft.effects import ReadReady
from tidelog_controller.raft.log import decode_entries
from tidelog_controller.raft.membership import Configuration
from tidelog_controller.raft.progress import ReplicationProgress
from tidelog_controller.raft.raft import Raft

from mutants import rules
from mutants.rules import Patch

breaks = partial(rules.breaks, raft=True)


# --- elections -------------------------------------------------------------------------------------------


@breaks("Raft 5.2", "A server votes for one candidate in a term.")
def vote_twice_in_a_term(patch: Patch) -> None:
    """A follower gives its vote to any candidate."""
    decide = Raft._on_request_vote

    def vote(self, sender, request, now):
        if self.role == "follower" and not request.pre and request.term == self.term:
            self.voted_for = None
        decide(self, sender, request, now)

    patch.setattr(Raft, "_on_request_vote", vote)


@breaks("Raft 5.2", "A vote outlives the process.")
def forget_the_vote(patch: Patch) -> None:
    """The vote is lost at a restart, as in raftos."""
    begin = Raft.__init__

    def forget(self, *arguments):
        begin(self, *arguments)
        self.voted_for = None

    patch.setattr(Raft, "__init__", forget)


@breaks("Raft 5.4.1", "A controller votes only for one whose log is not behind its own.")
def vote_for_anybody(patch: Patch) -> None:
    """Logs are not compared."""
    decide = Raft._on_request_vote

    def vote(self, sender, request, now):
        mine = (self.log.last_term, self.log.last_index)
        if mine > (request.last_term, request.last_index) and request.term > mine[0]:
            request = replace(request, last_term=mine[0], last_index=mine[1])
        decide(self, sender, request, now)

    patch.setattr(Raft, "_on_request_vote", vote)


@breaks(
    "founding", "A controller without a configuration gives no vote.", tests=("unit.controller.raft.test_bootstrap",)
)
def vote_without_a_configuration(patch: Patch) -> None:
    """The controller votes for the founder, which leads before a majority knows the voters."""
    fit = Raft._is_fit

    def ignore(self, request):
        return not self.members.all or fit(self, request)

    patch.setattr(Raft, "_is_fit", ignore)


@breaks(
    "founding",
    "A cluster is founded when all know the same empty stores.",
    tests=("unit.controller.raft.test_bootstrap",),
)
def found_a_cluster_with_whoever_was_met(patch: Patch) -> None:
    """Each other one has heard of this store, whatever it knows of the rest."""

    def met(self):
        heard = (self._known_to.get(peer, {}) for peer in self._peers)
        return self._stores.keys() == self._urls.keys() and all(self.raft.node_id in each for each in heard)

    patch.setattr(Bootstrap, "_all_know_the_same", met)


@breaks("Raft 5.1", "A leader that hears of a later term follows.")
def lead_on_in_an_old_term(patch: Patch) -> None:
    """The leader ignores later terms."""
    receive = Raft.on_message

    def ignore(self, sender, message, now):
        late = getattr(message, "term", 0) > self.term and not getattr(message, "pre", False)
        return [] if self.role == "leader" and late else receive(self, sender, message, now)

    patch.setattr(Raft, "on_message", ignore)


@breaks("dissertation 9.6", "A server raises its term only when it has asked whether it could win.")
def stand_without_asking_first(patch: Patch) -> None:
    """A controller that hears no leader stands for election at once."""
    patch.setattr(Raft, "_become_pre_candidate", Raft._become_candidate)


@breaks("dissertation 6.2", "A leader that hears no majority steps down.")
def lead_without_a_majority(patch: Patch) -> None:
    """The leader leads until it hears of a later term."""
    patch.setattr(Raft, "_quorum_ends_at", lambda self: None)


@breaks("dissertation 4.2.3", "A controller that hears a leader helps no other one to depose it.")
def help_to_depose_a_leader(patch: Patch) -> None:
    """Any candidate with a later term may have the vote, however well the leader is."""
    patch.setattr(Raft, "_hears_leader", lambda self, now: False)


@breaks("Raft 5.2", "Half of the voters are no majority.")
def take_half_for_a_majority(patch: Patch) -> None:
    """One vote less than a majority is enough."""
    patch.setattr(Configuration, "majority", property(lambda self: max(1, len(self.voters) // 2)))


# --- replication -----------------------------------------------------------------------------------------


@breaks("Raft 5.3", "An entry is committed when a majority holds it.")
def commit_on_a_minority(patch: Patch) -> None:
    """The active controller commits what it has written itself."""

    def advance(self):
        if self.log.last_index > self.commit_index:
            self._commit(self.log.last_index)

    patch.setattr(Raft, "_advance_commit", advance)


@breaks("Raft 5.4.2, figure 8", "Only an entry of the leader's own term is committed by counting.")
def commit_earlier_terms_by_counting(patch: Patch) -> None:
    """Whatever a majority holds is committed."""

    def advance(self):
        known = {voter.node: self._follower_of(voter.node) for voter in self.members.voters}
        own = {self.node_id: self.log.last_index}
        matches = [own.get(node, 0) if follower is None else follower.match for node, follower in known.items()]
        commit_and_tell(self, sorted(matches, reverse=True)[self.members.majority - 1])

    patch.setattr(Raft, "_commit_by_counting", advance)


def commit_and_tell(raft, index) -> None:
    """As a leader does it."""
    if index > raft.commit_index:
        raft._commit(index)
        for peer in list(raft._progress):
            if not raft._replicate(peer) and not raft._progress[peer].probing:
                raft._send_append(peer, ())


@breaks("Raft 5.3", "A leader never changes its own log.")
def lead_without_what_is_not_known_to_be_committed(patch: Patch) -> None:
    """A new leader begins behind the last entry that it knows to be committed."""
    lead = Raft._become_leader

    def drop(self, now):
        self.log.merge((), self.commit_index + 1)
        lead(self, now)

    patch.setattr(Raft, "_become_leader", drop)


@breaks("Raft 5.3", "A follower takes entries only behind one that agrees with the leader's.")
def take_entries_behind_any(patch: Patch) -> None:
    """The follower checks that it has the previous entry, and does not compare the term of the entry."""
    patch.setattr(Raft, "_agrees_at", lambda self, index, term: index <= self.log.last_index)


@breaks("Raft 5.3", "An older AppendEntries erases nothing that a newer one brought.")
def erase_what_an_old_message_does_not_know(patch: Patch) -> None:
    """A follower's log ends with the last message that it got, as in raftos."""
    take = Raft._on_append_entries

    def erase(self, leader, append, now):
        take(self, leader, append, now)
        entries = decode_entries(append.payload, append.prev_index, append.prev_term, append.term)
        if entries and self.leader_id == leader and self.commit_index <= entries[-1].index:
            self.log.merge((), entries[-1].index + 1)

    patch.setattr(Raft, "_on_append_entries", erase)


@breaks("Raft 5.3", "A follower acknowledges what a message has proved, and no more of its log.")
def acknowledge_the_whole_log(patch: Patch) -> None:
    """The follower acknowledges its last entry, whichever leader wrote it."""
    send = Raft._send

    def acknowledge(self, to, message):
        if isinstance(message, AppendResult) and message.ok:
            message = replace(message, match=self.log.last_index)
        send(self, to, message)

    patch.setattr(Raft, "_send", acknowledge)


@breaks("Raft figure 2", "Term, vote and entries are durable before any message reports them.")
def tell_before_it_is_durable(patch: Patch) -> None:
    """Messages are sent before the disk has synced."""
    patch.setattr(Raft, "_send", lambda self, to, message: self._effects.append(Send(to, message)))


@breaks("Raft 5.3", "A refusal leads the leader back to where the logs agree.")
def pass_over_refusals(patch: Patch) -> None:
    """The leader goes on where it was; what was lost stays lost."""
    patch.setattr(ReplicationProgress, "on_rejected", lambda self, hint: False)


# --- snapshots, reads, clients ---------------------------------------------------------------------------


@breaks("Raft 7", "Behind a snapshot that agrees with the log the log stays.")
def forget_what_stands_behind_a_snapshot(patch: Patch) -> None:
    """It is gone with what the snapshot stands for."""
    install = Raft._install

    def forget(self, snapshot):
        self.log.merge((), snapshot.index + 1)
        install(self, snapshot)

    patch.setattr(Raft, "_install", forget)


@breaks("Raft 7", "A snapshot is installed when it is whole.")
def install_half_a_snapshot(patch: Patch) -> None:
    """The first piece passes for all of it."""
    take = Raft._on_install_snapshot

    def hurry(self, leader, message, now):
        size = len(message.payload) or message.size
        crc = zlib.crc32(message.payload) if message.payload else message.crc
        take(self, leader, replace(message, size=size, crc=crc, offset=0), now)

    patch.setattr(Raft, "_on_install_snapshot", hurry)


@breaks("dissertation 6.4", "A read waits until a majority has confirmed the leader since it came.")
def read_at_once(patch: Patch) -> None:
    """A leader takes its own word for it."""

    def read(self, now):
        if self.role != "leader" or self.log.term_at(self.commit_index) != self.term:
            return None, []
        token = self._reads.new_token()
        return token, [ReadReady(token)]

    patch.setattr(Raft, "read", read)


@breaks("Raft 8", "A request that is asked again is answered as it was, and not done again.")
def do_a_request_again(patch: Patch) -> None:
    """Client and sequence are not looked at."""
    patch.setattr(ClientSessions, "find", lambda self, request: None)


# --- the group -------------------------------------------------------------------------------------------


def changes(patch: Patch, is_early) -> None:
    """Changes of the group are refused only where ``is_early(raft)`` is true."""
    refuse = Raft._change

    def change(self, members, now):
        if is_early(self):
            return refuse(self, members, now)
        if not members.keeps_quorum(self._live_voters(now)):
            return refuse(self, members, now)
        return self._append_members(members, now), self._take_effects()

    patch.setattr(Raft, "_change", change)


@breaks("dissertation 4.1", "The group changes only when its last change is committed.")
def change_the_group_twice_at_once(patch: Patch) -> None:
    """Changes may overlap."""
    changes(patch, lambda raft: raft.log.term_at(raft.commit_index) != raft.term)


@breaks("Ongaro 2015", "A leader changes the group only when an entry of its own term is committed.")
def change_the_group_before_the_term_has_begun(patch: Patch) -> None:
    """That its last change is committed is enough."""
    changes(patch, lambda raft: raft.log.members_index > raft.commit_index)


@breaks("dissertation 4.2.1", "A learner counts for no majority.")
def count_learners(patch: Patch) -> None:
    """What a learner has acknowledged counts like a voter's."""

    def advance(self):
        matches = []
        for member in self.members.all:
            follower = self._follower_of(member.node) if member.voter else self._progress.get(member.node)
            own = self.log.last_index if member.node == self.node_id else 0
            matches.append(own if follower is None else follower.match)
        index = sorted(matches, reverse=True)[self.members.majority - 1]
        if self.log.term_at(index) == self.term:
            commit_and_tell(self, index)

    patch.setattr(Raft, "_commit_by_counting", advance)


@breaks("lost stores", "A voter is a store: a controller that has lost its store has no vote.")
def believe_any_store(patch: Patch) -> None:
    """Votes and entries count by the controller's name, whatever it has forgotten."""
    patch.setattr(Configuration, "has_vote", lambda self, node, store: any(v.node == node for v in self.voters))
    patch.setattr(Configuration, "wins", lambda self, of: sum(v.node in of for v in self.voters) >= self.majority)
    patch.setattr(Raft, "_follower_of", lambda self, node: self._progress.get(node))


# --- old copies of disks ---------------------------------------------------------------------------------


@breaks("decision 19", "An old copy of a disk does not count before it is refilled.")
def count_an_old_copy(patch: Patch) -> None:
    """Its acknowledgements make majorities as ever."""
    patch.setattr(Raft, "_follower_of", Raft._answering)


@breaks("decision 19", "An old copy of a disk gives no vote.")
def let_an_old_copy_vote(patch: Patch) -> None:
    """It votes, and stands."""
    fit = Raft._is_fit

    def ignore(self, request):
        known, self.rolled_back = self.rolled_back, False
        try:
            return fit(self, request)
        finally:
            self.rolled_back = known

    patch.setattr(Raft, "_is_fit", ignore)
    patch.setattr(Raft, "is_voter", property(lambda self: self.members.has_vote(self.node_id, self.store)))


@breaks("decision 19", "That a disk is an old copy is durable before anything is answered.")
def keep_in_memory_that_it_is_an_old_copy(patch: Patch) -> None:
    """A restart forgets it."""
    begin = Raft.__init__

    def forget(self, node_id, settings, stored, rng, now):
        begin(self, node_id, settings, replace(stored, rolled_back=False), rng, now)

    patch.setattr(Raft, "__init__", forget)


@breaks("decision 19", "An old copy counts again when it has everything up to the end of the leader's log.")
def end_the_refill_early(patch: Patch) -> None:
    """Whatever agrees with the leader's log is enough."""
    begin = ReplicationProgress.begin_refill
    patch.setattr(
        ReplicationProgress, "begin_refill", lambda self, refill, round: begin(self, replace(refill, to=0), round)
    )


@breaks("decision 19", "What an earlier life of a store has acknowledged does not count for this one.")
def believe_an_earlier_life(patch: Patch) -> None:
    """Answers to older rounds are taken as answers of this life."""
    begin = ReplicationProgress._begin_incarnation

    def begin_at_once(self, round):
        begin(self, 0)

    patch.setattr(ReplicationProgress, "_begin_incarnation", begin_at_once)


@breaks("decision 19", "A server that has heard the leader of a term votes for no other one in it.")
def vote_where_the_leader_is_known(patch: Patch) -> None:
    """What has no vote yet in that term may have its."""
    follow = Raft._follow

    def forget_for_whom(self, leader, term, now):
        known = self.voted_for if term == self.term else None
        follow(self, leader, term, now)
        if known is None:
            self.voted_for = None

    patch.setattr(Raft, "_follow", forget_for_whom)

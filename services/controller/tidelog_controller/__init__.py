"""The controller keeps the cluster's metadata in a Raft log, elects partition leaders and records why.

Rooms, from the top down; each imports only what is below it:

    server, rescue    starting, and letting one controller go on alone
    observability     metrics and health
    shell             sockets, threads and time
    controller        a request's way, and the decisions of the active controller
    metadata_log      propose a command, wait until it is committed, apply it
    active            what only the active controller does of its own accord
    storage           Raft's database on the disk
    metadata          the replicated state and its rules
    config            all settings
    raft              consensus

Start reading at ``controller.py`` (a request's way), ``metadata/application.py`` (what commands change),
``metadata/rules/leader_election.py`` (who leads a partition) and ``raft/raft.py`` (the theory of the Raft group).
The terms are explained in ``docs/vocabulary.md``, and the invariants with their tests are listed in
``docs/invariants.md``.
"""

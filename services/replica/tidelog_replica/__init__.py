"""The replica server keeps the logs of partitions: leaders append and serve, followers copy.

Rooms, from the top down; each imports only what is below it:

    server, shell     sockets, threads and time
    node              every input of the server, and the effects that it brings about
    requests          what clients, gateways and followers ask
    coordinators      consumer groups and transactions, over their internal topics
    copies            comparing this server's copies with those of other replicas
    assignment        from the controllers' metadata to the partitions that are open here, and their roles
    fetcher           one for each leader that this server follows
    maintenance       opening, retention, compaction, scrubbing, repair, disk space
    partition         one partition: its log and its role
    registration      this server at the controllers
    storage           the log on the disk
    replication       the protocol, pure

Start reading at ``node.py``, ``partition/partition.py``, ``replication/leader_state.py``,
``replication/follower_state.py`` and ``storage/log.py``. HW, LEO, ISR, ELR, LSO and all other terms are explained in
``docs/vocabulary.md``, and the invariants with their tests are listed in ``docs/invariants.md``.
"""

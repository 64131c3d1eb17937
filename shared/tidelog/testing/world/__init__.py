"""A world for programs that use Tidelog: a simulated cluster, the user's own programs in it, and faults.

The way in is ``world.World``, which a test gets as the fixture ``tidelog_world``. A run is a function of its seed:

    run         one run: the cluster starts, programs and faults run, everything heals, the invariants are judged
    programs    the user's functions as processes: started, killed, paused, started again
    faults      what may happen to the programs and the cluster
    swarm       draws the faults of a run from its seed
    strikes     carries the faults out
    traffic     what the programs send and receive: lines of the trace, and the moments at which faults strike
    outcome     what invariants see at the end; ``invariants`` has ready-made ones
    search      many seeds, each in a process of its own, and the search for fewer faults that still fail
    cluster     the services (``tidelog.testing.shells``) with settings under which an idle cluster costs little
    clock, wires, stopped_tasks, entropy
                virtual time, the network, programs that stand still, and chance: what the run stands on

Services, client and WebSockets are the real ones (decision 47). The room stands on ``hardware`` and ``shells``; only
the package itself and ``world_fixture`` import it.
"""

"""Search engines for the replication protocol, four of them; ``docs/lab/models.md`` says what each one covers.

- replication.pml, spin.py: a small model of the design, all its states (SPIN)
- search.py: the real cores, all states of a small scope, breadth first
- raft_search.py: real Raft cores, all states of a small scope, breadth first
- walks.py: the real cores, random walks
- mutants.py: rules broken on purpose, which they must notice
"""

"""Proof by machine of the replication protocol, by four engines; ``docs/lab/models.md`` says what each one sees.

replication.pml, spin.py   a small model of the design, all its states (SPIN)
search.py                  the real cores, all states of a small scope, breadth first
raft_search.py            real Raft cores, all states of a small scope, breadth first
walks.py                   the real cores, random walks
mutants.py                 rules broken on purpose, which they must notice
"""

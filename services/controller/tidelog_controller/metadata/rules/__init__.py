"""The rules of the metadata, one module for each subject: what a request plans, and what its command changes.

Start at ``metadata/rules/leader_election.py``, the one function that chooses leaders. A rule reads the state and
changes it only by way of a change set. It never asks a clock or a random number: the command carries both.
``metadata/application.py`` calls the function that a module registered for a command (``metadata/registry.py``). The
active controller calls the functions that plan (``plan_…``).
"""

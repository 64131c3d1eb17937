"""From the controllers' metadata to the partitions that this server opens, leads, follows and deletes.

Start at ``assignment/assignment.py``. ``isr_proposals.py`` asks the controllers to change an ISR, and
``controller_reports.py`` reports sealed logs, handovers and losses to them. ``leadership.py`` decides whether a
leader here may serve while no controller answers, and ``isolation.py`` records what was appended meanwhile.
"""

"""A log after a crash or on a failing disk: which records it holds, and which are doubtful, damaged or lost.

Start at ``storage/recovery/recovery.py``, which reads a log when it opens. ``doubtful_tail.py`` distinguishes a torn
write from records that were flushed, ``damage.py`` sets damaged segments aside and fills the holes, ``reset.py``
begins a log anew, ``pending_losses.py`` remembers losses until the controllers know of them.
"""

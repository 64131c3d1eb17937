"""Commands of ``tidelog`` that explain: ``status``, ``doctor``, ``why``, captures of what happened.

Start at ``cli/explain/doctor.py``; ``findings`` has what it finds, ``sentences.py`` and ``describe.py`` the
words.
"""

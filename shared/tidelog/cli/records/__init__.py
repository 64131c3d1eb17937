"""Records on the command line: ``tidelog produce`` and ``tidelog consume``.

``produce.py`` reads records (``record_input.py``) and sends them (``record_sender.py``). ``consume.py`` receives
records, chooses (``record_filter.py``) and prints them (``formats.py``, ``template.py``), those of the cluster's own
topics decoded (``internal_records.py``).
"""

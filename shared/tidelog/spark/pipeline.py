"""The program for spark-submit: ``spark-submit …/tidelog/spark/pipeline.py FILE`` runs a pipeline, as
``tidelog pipeline run FILE`` does."""

from __future__ import annotations

import sys

from tidelog.cli import main

if __name__ == "__main__":
    main(["pipeline", "run", *sys.argv[1:]])

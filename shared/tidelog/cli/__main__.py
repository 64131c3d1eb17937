"""``python -m tidelog.cli``."""

from tidelog.cli import main

main(prog_name="tidelog")

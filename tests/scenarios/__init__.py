"""Scenarios: one test for each known failure, named by its id.

Those that need no whole cluster stand on the toy network of the unit tests, which is made importable here.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "unit"))

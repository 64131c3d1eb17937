"""A driver of a library with a fault: the driver of ``tidelog``, some of whose answers are changed. The argument is
the name of the fault. ``loses``: ``next`` leaves out a record; ``doubles``: ``next`` returns one twice; ``confuses``:
acks have wrong offsets; ``hides``: errors are reported as success; ``hangs up``: the program ends at the first
``send``; ``babbles``: answers are no JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

fault = sys.argv[1]


def changed(command: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a command with the fault."""
    ok = answer.get("ok", {})
    if fault == "hides" and "error" in answer:
        return {"id": answer["id"], "ok": {"records": [], "end": True}}
    if command["do"] == "next" and ok.get("records"):
        if fault == "loses":
            ok["records"].pop()
        if fault == "doubles":
            ok["records"].append(ok["records"][-1])
    if fault == "confuses":
        for outcome in ok.get("outcomes", []):
            outcome["ack"]["offset"] += 1
    return answer


driver = subprocess.Popen(
    [sys.executable, Path(__file__).with_name("trio_driver.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
assert driver.stdin is not None and driver.stdout is not None
for line in sys.stdin.buffer:
    command = json.loads(line)
    if fault == "hangs up" and command["do"] == "send":
        break
    driver.stdin.write(line)
    driver.stdin.flush()
    answer = changed(command, json.loads(driver.stdout.readline()))
    print("answer!" if fault == "babbles" and command["do"] != "hello" else json.dumps(answer), flush=True)
driver.stdin.close()
driver.wait()

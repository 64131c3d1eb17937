"""``python -m tidelog.probe``: asks the service on this machine whether it is alive, or ready
(``tidelog.runtime.health``).

For supervisors that run a command and use its exit code: the health check of a container, an ``exec`` probe of
Kubernetes where services ask for certificates, a unit of systemd. It starts in a tenth of a second, and reads the
port and the certificates from the environment variables that the service beside it reads. Settings that the service
has from a file must be given as flags.

Exit codes: 0 the answer is yes; 1 the answer is no, or there is none, with the reasons on stderr; 2 wrong flags.
"""

from __future__ import annotations

import argparse
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from tidelog.runtime.health import HEALTH_PATH, READY_PATH

HOST = "127.0.0.1"
TIMEOUT_S = 4.0


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Ask the service on this machine once whether it is alive, or with ``--ready`` whether it is ready, and return
    the exit code: 0 yes, 1 no or no answer, with the reasons on stderr. Wrong flags end the process with exit code
    2."""
    parser = argparse.ArgumentParser(
        prog="python -m tidelog.probe", description="Ask the service on this machine whether it is alive."
    )
    parser.add_argument("--ready", action="store_true", help="ask whether it is ready (/readyz) instead")
    for name, help in {
        "port": "port that it listens on",
        "tls-ca": "authorities for its certificate, which is then checked except for the host name",
        "tls-cert": "certificate to show; with one, or with tls-ca, TLS is spoken",
        "tls-key": "its key",
    }.items():
        variable = f"TIDELOG_{name.replace('-', '_').upper()}"
        parser.add_argument(f"--{name}", default=environ.get(variable, ""), help=f"{help}  [{variable}]")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="S", help="[default: %(default)s]")
    asked = parser.parse_args(arguments)
    if not asked.port.isdecimal() or bool(asked.tls_cert) != bool(asked.tls_key):
        parser.error("give the port, and a certificate together with its key, as flags or in the environment")
    try:
        status, said = _ask(asked)
    except (OSError, HTTPException, ValueError) as error:
        print(f"{HOST}:{asked.port} gives no answer: {error or type(error).__name__}", file=sys.stderr)
        return 1
    if status != 200:
        print(said.rstrip() or f"status {status}", file=sys.stderr)
    return int(status != 200)


def _ask(asked: argparse.Namespace) -> tuple[int, str]:
    """Send the request for health or readiness to the service, over TLS if a certificate or an authority is given,
    and return the HTTP status and the text of the answer."""
    connection = HTTPConnection(HOST, int(asked.port), timeout=asked.timeout)
    if asked.tls_cert or asked.tls_ca:
        context = ssl.create_default_context(cafile=asked.tls_ca or None)
        context.check_hostname = False  # its certificate is for the names under which others reach it
        context.verify_mode = ssl.CERT_REQUIRED if asked.tls_ca else ssl.CERT_NONE
        if asked.tls_cert:
            context.load_cert_chain(asked.tls_cert, asked.tls_key)
        connection = HTTPSConnection(HOST, int(asked.port), timeout=asked.timeout, context=context)
    try:
        connection.request("GET", READY_PATH if asked.ready else HEALTH_PATH)
        answer = connection.getresponse()
        return answer.status, answer.read(4096).decode(errors="replace")
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())

"""What the doctor says of certificates, what a handshake shows of them, and what the doctor may not see. Tests
``findings/security.py`` and ``certificate_looks.py``."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from tidelog.cli.explain.certificate_looks import CertificateLook, look_at_certificates
from tidelog.cli.explain.findings.consequences import with_causes
from tidelog.cli.explain.findings.finding import NOTE, Finding
from tidelog.cli.explain.findings.security import SOON_EXPIRED_S, examine_certificates, examine_hidden
from tidelog.net.dev_certificates import open_authority
from tidelog.net.tls import NodeIdentity, TlsFiles, TlsOptions

from unit.tidelog.cli.explain.findings.cluster_views import WHOLE, cluster

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def codes(*looks: CertificateLook) -> list[str]:
    return [one.cause for one in examine_certificates(looks)]


def test_each_fault_of_a_certificate_has_a_cause_of_its_own() -> None:
    assert (
        codes(CertificateLook("r1", "wss://r1", left_s=SOON_EXPIRED_S + 1), CertificateLook("r2", "wss://r2")) == []
    )
    assert codes(
        CertificateLook("r1", "wss://r1", 10, "certificate has expired"),
        CertificateLook("r2", "wss://r2", 9, "certificate is not yet valid"),
        CertificateLook("r3", "wss://r3", 19, "self-signed certificate in certificate chain"),
        CertificateLook("r4", "wss://r4", left_s=SOON_EXPIRED_S - 1),
    ) == [
        *("certificate-expired", "certificate-not-valid-yet", "certificate-not-accepted", "certificate-expires-soon"),
    ]


def test_a_gateway_that_cannot_be_reached_for_its_certificate_is_a_consequence() -> None:
    (expired,) = examine_certificates([CertificateLook("wss://g1", "wss://g1", 10, "certificate has expired")])
    lost = Finding("problem", "gateway wss://g1", "See.", "gateway-unreachable", ("wss://g1",))
    assert [one.because_of for one in with_causes([lost, expired])] == ["certificate-expired", ""]
    assert expired.evidence == "wss://g1: certificate has expired." and "tls.cert" in expired.next_step


@pytest.mark.parametrize(
    ("begins", "lasts", "own", "code"),
    [(-DAY, 3 * DAY, True, 0), (-3 * DAY, DAY, True, 10), (DAY, DAY, True, 9), (-DAY, 3 * DAY, False, 19)],
    ids=["valid", "expired", "not yet valid", "of another authority"],
)
def test_a_handshake_shows_what_is_wrong(
    tmp_path: Path, begins: timedelta, lasts: timedelta, own: bool, code: int
) -> None:
    authority = open_authority(tmp_path / "own", NOW - 5 * DAY, 30 * DAY)
    signer = authority if own else open_authority(tmp_path / "other", NOW - 5 * DAY, 30 * DAY)
    files = signer.issue("r1", [NodeIdentity("replica", "r1")], ("127.0.0.1",), NOW + begins, lasts)
    server = TlsFiles(TlsOptions(str(signer.ca), files.cert, files.key)).accepting()

    async def main() -> tuple[CertificateLook, ...]:
        async def serve(stream: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):
                await trio.SSLStream(stream, server, server_side=True).do_handshake()

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, serve, 0)
            port = listeners[0].socket.getsockname()[1]
            urls = {"r1": f"wss://127.0.0.1:{port}", "r2": f"ws://127.0.0.1:{port}", "r3": "wss://127.0.0.1:1"}
            looks = await look_at_certificates(urls, TlsFiles(TlsOptions(ca=str(authority.ca))), NOW.timestamp())
            nursery.cancel_scope.cancel()
        return looks

    (look,) = trio.run(main)
    assert (look.node, look.code) == ("r1", code)
    assert (look.left_s is not None) == (code == 0)
    if look.left_s is not None:
        assert abs(look.left_s - (2 * DAY).total_seconds()) < 60


def test_partitions_that_the_client_may_not_see_are_said_to_be_not_looked_at() -> None:
    def seen(counted: float) -> list[Finding]:
        return list(examine_hidden(cluster(WHOLE, WHOLE, metrics={"c1": {"tidelog_partitions": counted}})))

    (one,) = seen(5.0)
    assert (one.level, one.cause) == (NOTE, "topics-hidden") and "3 partitions of 5 were not looked at" in one.what
    assert seen(2.0) == [] and list(examine_hidden(cluster())) == [], "all are seen; it is not known"

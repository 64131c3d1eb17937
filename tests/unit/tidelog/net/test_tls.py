"""TLS with real sockets: who gets through to whom, with which certificate, and what the others are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tidelog.errors import ConfigError, TidelogError
from tidelog.net.dev_certificates import Authority, open_authority
from tidelog.net.link import connect_link, serve_links
from tidelog.net.tls import NodeIdentity, TlsFiles, TlsOptions, identities_of
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import DescribeQuorum, Hello, Message, QuorumAnswer, Welcome

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
R1, R2, C1, G1 = (
    NodeIdentity(*name.split("/")) for name in ("replica/r1", "replica/r2", "controller/c1", "gateway/g1")
)
ALICE = NodeIdentity("client", "alice")
HERE = ("127.0.0.1", "localhost")
NOBODY = TlsOptions()


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The cluster's authority."""
    return open_authority(tmp_path_factory.mktemp("ca"), NOW, DAY)


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Open an authority that the cluster does not know."""
    return open_authority(tmp_path_factory.mktemp("other"), NOW, DAY)


@asynccontextmanager
async def serving(files: TlsOptions, clients: str = "required", node: str = "c1") -> AsyncIterator[str]:
    """A controller that answers everybody whom TLS and hello let in."""
    transport = WebSocketTransport(tls=None if files == NOBODY else TlsFiles(files, clients))
    welcome = Welcome(1, "c", node, "controller", 1 << 20, 100)
    ops = frozenset({DescribeQuorum.OP})
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[str]) -> None:
            await serve_links(
                transport,
                "127.0.0.1",
                0,
                lambda hello: welcome,
                lambda link, id, message: link.answer(id or 0, QuorumAnswer("c1", 1, 0, ())),
                allowed={"client": ops, "replica": ops, "controller": ops, "gateway": ops},
                task_status=task_status,
            )

        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


async def asked(url: str, files: TlsOptions, hello: Hello) -> Message:
    """What the server answers; raises why it does not."""
    transport = WebSocketTransport(tls=TlsFiles(files))
    with trio.fail_after(10):
        async with connect_link(transport, url, hello) as link:
            return await link.call(DescribeQuorum(), 5)


def hello(who: NodeIdentity) -> Hello:
    return Hello(1, who.role, who.node)


@pytest.fixture(scope="module")
def server(ca: Authority) -> TlsOptions:
    return ca.issue("c1", [C1], HERE, NOW, DAY)


@pytest.mark.parametrize("who", [R1, G1, ALICE])
async def test_a_certificate_of_the_cluster_opens_the_port_to_the_identity_that_it_names(
    ca: Authority, server: TlsOptions, who: NodeIdentity
) -> None:
    async with serving(server) as url:
        assert url.startswith("wss://127.0.0.1:")
        assert await asked(url, ca.issue("good", [who], (), NOW, DAY), hello(who)) == QuorumAnswer("c1", 1, 0, ())


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("none", "UNREACHABLE", "a client certificate is needed"),
        ("expired", "UNREACHABLE", "tlsv13 alert certificate expired|sslv3 alert certificate expired"),
        ("stranger", "UNREACHABLE", "does not trust the authority"),
        ("other node", "FORBIDDEN", "of replica/r2, and cannot speak for replica/r1"),
        ("other role", "FORBIDDEN", "of controller/r1, and cannot speak for replica/r1"),
        ("client", "FORBIDDEN", "of client/alice, and cannot speak for replica/r1"),
        ("nameless", "UNAUTHENTICATED", "URI:tidelog:replica/r1"),
    ],
)
async def test_any_other_certificate_does_not(
    ca: Authority, other_ca: Authority, server: TlsOptions, case: str, code: str, words: str
) -> None:
    files = {
        "none": TlsOptions(str(ca.ca)),
        "expired": ca.issue("x", [R1], (), NOW, -DAY),
        "stranger": replace(other_ca.issue("x", [R1], (), NOW, DAY), ca=str(ca.ca)),
        "other node": ca.issue("r2", [R2], (), NOW, DAY),
        "other role": ca.issue("cr", [NodeIdentity("controller", "r1")], (), NOW, DAY),
        "client": ca.issue("a", [ALICE], (), NOW, DAY),
        "nameless": ca.issue("n", [], HERE, NOW, DAY),
    }[case]
    async with serving(server) as url:
        with pytest.raises(TidelogError, match=words) as refused:
            await asked(url, files, hello(R1))
        assert refused.value.code == code


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("expired", "certificate has expired"),
        ("stranger", "the certificate shown is not accepted"),
        ("other host", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ("other node", "of controller/c2, and cannot speak for controller/c1"),
        ("other role", "of replica/c1, and cannot speak for controller/c1"),
    ],
)
async def test_a_server_must_show_one_that_fits_too(
    ca: Authority, other_ca: Authority, case: str, words: str
) -> None:
    files = {
        "expired": ca.issue("s1", [C1], HERE, NOW, -DAY),
        "stranger": replace(other_ca.issue("s2", [C1], HERE, NOW, DAY), ca=str(ca.ca)),
        "other host": ca.issue("s3", [C1], ["tide.example"], NOW, DAY),
        "other node": ca.issue("s4", [NodeIdentity("controller", "c2")], HERE, NOW, DAY),
        "other role": ca.issue("s5", [NodeIdentity("replica", "c1")], HERE, NOW, DAY),
    }[case]
    async with serving(files) as url:
        with pytest.raises(TidelogError, match=words):
            await asked(url, ca.issue("r1", [R1], (), NOW, DAY), hello(R1))


async def test_a_client_asks_for_the_host_only_and_may_show_nothing_where_nothing_is_required(ca: Authority) -> None:
    async with serving(ca.issue("s", [], HERE, NOW, DAY), "optional") as url:
        assert await asked(url, TlsOptions(str(ca.ca)), hello(ALICE))
        with pytest.raises(TidelogError, match="the certificate names no Tidelog service") as refused:
            await asked(url, TlsOptions(str(ca.ca)), hello(R1))
        assert refused.value.code == "UNAUTHENTICATED"


async def answer_to(url: str, data: bytes) -> bytes:
    """Send this over TCP, and return all that comes until the end of the connection."""
    async with await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2])) as stream:
        await stream.send_all(data)
        return b"".join([part async for part in stream])


async def test_a_page_that_is_asked_for_without_tls_says_what_is_right(server: TlsOptions) -> None:
    async with serving(server) as url:
        said = await answer_to(url, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, text = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 426 ") and f"content-length: {len(text)}".encode() in head
    assert b"This port speaks TLS: use wss://" in text


async def test_tls_at_a_port_without_it_is_answered_in_words() -> None:
    async with serving(NOBODY) as url:
        said = await answer_to(url, b"\x16\x03\x01\x02\x00\x01")
    assert said.startswith(b"HTTP/1.1 400 This port speaks no TLS: use ws://")


async def test_plain_text_and_tls_name_the_other_in_their_errors(ca: Authority, server: TlsOptions) -> None:
    async with serving(server) as url:
        with pytest.raises(TidelogError, match="the port speaks TLS: use wss://"):
            await asked(url.replace("wss:", "ws:"), TlsOptions(str(ca.ca)), hello(ALICE))
    async with serving(NOBODY) as url:
        with pytest.raises(TidelogError, match="is it a port without TLS"):
            await asked(url.replace("ws:", "wss:"), TlsOptions(str(ca.ca)), hello(ALICE))


async def test_files_that_change_are_read_again_when_they_go_together(tmp_path: Path) -> None:
    ca = open_authority(tmp_path, NOW, DAY)
    files = ca.issue("s", [C1], HERE, NOW, DAY)
    shown = ca.issue("r1", [R1], (), NOW, DAY)
    async with serving(files) as url:
        async with connect_link(WebSocketTransport(tls=TlsFiles(shown)), url, hello(R1)) as link:
            ca.issue("s", [NodeIdentity("controller", "c2")], HERE, NOW, DAY)
            with pytest.raises(TidelogError, match="of controller/c2"):
                await asked(url, shown, hello(R1))
            assert await link.call(DescribeQuorum(), 5), "open connections go on"
        await trio.Path(files.key).write_bytes(b"")  # as in the middle of somebody's copying
        with pytest.raises(TidelogError, match="of controller/c2"):
            await asked(url, shown, hello(R1))
        ca.issue("s", [C1], HERE, NOW, DAY)
        assert await asked(url, shown, hello(R1))


async def test_large_messages_and_the_end_come_through_as_in_plain_text(ca: Authority, server: TlsOptions) -> None:
    """Many TLS records a message, both ways at a time; then a close with its reason."""
    files = ca.issue("r1", [R1], (), NOW, DAY)
    accepting = WebSocketTransport(tls=TlsFiles(server, "required"))
    body = bytes(range(256)) * 4096 * 3
    got: list[bytes] = []

    async def echo(connection: object) -> None:
        assert await connection.receive() == b"hello"  # type: ignore[attr-defined]
        data = await connection.receive()  # type: ignore[attr-defined]
        await connection.send(b"", data)  # type: ignore[attr-defined]
        await connection.aclose(1001, "enough")  # type: ignore[attr-defined]

    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[str]) -> None:
            await accepting.serve("127.0.0.1", 0, echo, task_status=task_status)

        url = await nursery.start(serve)
        with trio.fail_after(20):
            connection = await WebSocketTransport(tls=TlsFiles(files)).connect(url)
            await connection.send(b"hello")
            await connection.send(body[:100], body[100:])
            got.append(await connection.receive())
            with pytest.raises(TidelogError, match="1001 enough"):
                await connection.receive()
            await connection.aclose()
        nursery.cancel_scope.cancel()
    assert got == [body]


def test_files_that_cannot_be_used_are_named(tmp_path: Path, ca: Authority, server: TlsOptions) -> None:
    with pytest.raises(ConfigError, match="nowhere: cannot be used for TLS: No such file"):
        TlsFiles(TlsOptions(str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match="key values mismatch"):
        TlsFiles(replace(server, key=ca.issue("k", [], (), NOW, DAY).key))
    with pytest.raises(ConfigError, match="go together"):
        TlsOptions(cert="c.pem")


@pytest.mark.parametrize("clients", ["none", "required"])
def test_it_is_known_when_the_certificate_in_force_expires(tmp_path: Path, clients: str) -> None:
    ca = open_authority(tmp_path, NOW, 9 * DAY)
    files = TlsFiles(ca.issue("s", [C1], HERE, NOW, 3 * DAY), clients)
    ends = NOW.replace(microsecond=0).timestamp()
    assert files.expires_s() == ends + 3 * 86_400
    expired = ca.issue("s", [C1], HERE, NOW, -DAY)
    assert files.expires_s() == ends - 86_400
    Path(expired.key).write_bytes(b"")
    assert files.expires_s() == ends - 86_400, "the former pair stays in force"
    ca.issue("s", [C1], HERE, NOW, 2 * DAY)
    assert files.expires_s() == ends + 2 * 86_400
    assert TlsFiles(TlsOptions(str(ca.ca))).expires_s() is None


def test_only_a_certificate_that_a_server_may_show_has_a_known_expiry(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "r1")])
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(NOW - DAY).not_valid_after(NOW + DAY)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for usage, known in ((ExtendedKeyUsageOID.SERVER_AUTH, True), (ExtendedKeyUsageOID.CLIENT_AUTH, False)):
        made = built.add_extension(x509.ExtendedKeyUsage([usage]), critical=False).sign(key, hashes.SHA256())
        (tmp_path / "c.pem").write_bytes(made.public_bytes(Encoding.PEM))
        (tmp_path / "c.key").write_bytes(secret)
        files = TlsFiles(TlsOptions("", str(tmp_path / "c.pem"), str(tmp_path / "c.key")))
        assert (files.expires_s() is not None) is known


def test_a_certificate_names_by_uri_or_else_by_unit_and_common_name() -> None:
    subject = ((("organizationalUnitName", "replica"),), (("commonName", "r1"),))
    assert identities_of({"subject": subject}) == (R1,)
    names = (("DNS", "r1"), ("URI", "tidelog:controller/c1"), ("URI", "tidelog:replica/r2"), ("URI", "http://x/y"))
    assert identities_of({"subject": subject, "subjectAltName": names}) == (C1, R2)
    assert identities_of({"subject": ((("commonName", "r1"),),), "subjectAltName": (("DNS", "r1"),)}) == ()
    assert identities_of({"subjectAltName": (("URI", "tidelog:replica"), ("URI", "tidelog:/r1"))}) == ()
    assert identities_of(None) == ()


def test_an_authority_is_kept_its_keys_are_private(tmp_path: Path) -> None:
    first = open_authority(tmp_path / "new", NOW, DAY)
    files = first.issue("r1", [R1], HERE, NOW, DAY)
    assert Path(files.key).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new" / "ca.key").stat().st_mode & 0o777 == 0o600
    assert open_authority(tmp_path / "new", NOW, DAY).certificate == first.certificate
    made = x509.load_pem_x509_certificate(Path(files.cert).read_bytes())
    made.verify_directly_issued_by(first.certificate)
    (tmp_path / "new" / "ca.key").unlink()
    with pytest.raises(ConfigError, match="half an authority"):
        open_authority(tmp_path / "new", NOW, DAY)

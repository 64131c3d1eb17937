"""Tokens of an OpenID Connect issuer: which are taken, and as whom; where its keys come from."""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from tidelog.errors import ConfigError, TidelogError
from tidelog.runtime.config import load
from tidelog.types import Access
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.rights import issuer_keys, oidc
from tidelog_gateway.rights.authorizer import Authorizer, AuthorizerSettings, ClientIdentity
from tidelog_gateway.rights.issuer_keys import MAX_BYTES, IssuerKeys
from tidelog_gateway.rights.oidc import MAX_TOKEN_BYTES, MAX_UNKNOWN, REFETCH_S, Issuer
from tidelog_gateway.settings import OidcRules

ISSUER, HERE = "https://login.example", "tidelog"
RULES = OidcRules(ISSUER, (HERE,), ("RS256", "ES256"), leeway_s=30, refresh_s=300.0, max_age_s=1000.0)
NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000


def rsa(kid: str, bits: int = 2048, **more: str) -> RSAKey:
    return RSAKey.generate_key(bits, {"kid": kid, **more})  # type: ignore[arg-type]


FIRST, SECOND, STRANGE = rsa("one"), rsa("two"), rsa("one")
CURVE = ECKey.generate_key("P-256", {"kid": "curve"})


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def issuer(*keys: Any, rules: OidcRules = RULES) -> Issuer:
    made = Issuer(rules)
    made.on_try(0.0)
    made.on_keys(key_set(*(keys or (FIRST, CURVE))), 0.0)
    return made


def claims(**more: Any) -> dict[str, Any]:
    said = {"iss": ISSUER, "aud": HERE, "sub": "alice", "exp": NOW_S + 300, "iat": NOW_S} | more
    return {name: value for name, value in said.items() if value is not None}


def token(key: Any = FIRST, alg: str = "RS256", header: dict[str, Any] | None = None, **more: Any) -> str:
    shown = {"alg": alg, "kid": key.kid} | (header or {})
    return jwt.encode({k: v for k, v in shown.items() if v is not None}, claims(**more), key, algorithms=[alg])


def part(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def unsigned(header: dict[str, Any], said: dict[str, Any] | None = None, signature: bytes = b"") -> str:
    return f"{part(header)}.{part(claims() if said is None else said)}.{part(signature)}"


def signed_with_secret(secret: bytes, kid: str = "one") -> str:
    """As HS256 has it, by whatever is taken for the secret."""
    text = f"{part({'alg': 'HS256', 'kid': kid})}.{part(claims())}"
    return f"{text}.{part(hmac.digest(secret, text.encode(), 'sha256'))}"


def refusal(answer: ClientIdentity | TidelogError) -> TidelogError:
    assert isinstance(answer, TidelogError)
    return answer


# --- whom a token names --------------------------------------------------------------------------------------


def test_a_token_of_the_issuer_names_a_principal_and_expires() -> None:
    taken = ClientIdentity("oidc-alice", expires_ms=(NOW_S + 330) * 1000)
    one = issuer()
    assert one.recognize(token(), NOW_MS) == taken
    assert one.recognize(token(CURVE, "ES256"), NOW_MS) == taken
    assert one.recognize(token(aud=["other", HERE]), NOW_MS) == taken
    assert one.recognize(token(header={"typ": "at+jwt"}), NOW_MS) == taken


def test_a_key_without_an_id_is_found_where_there_is_one_that_suits() -> None:
    assert isinstance(issuer().recognize(token(header={"kid": None}), NOW_MS), ClientIdentity)
    refused = refusal(issuer(FIRST, SECOND).recognize(token(header={"kid": None}), NOW_MS))
    assert refused.code == "UNAUTHENTICATED" and "which of the issuer's keys" in refused.message


def test_the_claim_and_the_prefix_are_settings() -> None:
    rules = OidcRules(ISSUER, (HERE,), claim="preferred_username", prefix="")
    known = issuer(FIRST, rules=rules)
    found = known.recognize(token(preferred_username="bob"), NOW_MS)
    assert isinstance(found, ClientIdentity) and found.principal == "bob"
    for name in ("auth0|5f7c8ec7c33c6c004bbafe82", "google-oauth2|1"):
        assert known.recognize(token(preferred_username=name), NOW_MS).principal == name  # type: ignore[union-attr]
    for name in ("anonymous", "*", "", "b b", "bob\n", "b\x1b[2J", "x" * 250, 7, ["bob"], None):
        refused = refusal(known.recognize(token(preferred_username=name), NOW_MS))
        assert "preferred_username names no principal" in refused.message
        assert "1 to 249 of A-Z a-z 0-9 . _ @ | -" in refused.message and "oidc.principal_claim" in refused.message


def test_an_email_counts_only_where_the_issuer_has_verified_it() -> None:
    known = issuer(FIRST, rules=OidcRules(ISSUER, (HERE,), claim="email"))
    found = known.recognize(token(email="bob@here.example", email_verified=True), NOW_MS)
    assert isinstance(found, ClientIdentity) and found.principal == "oidc-bob@here.example"
    for verified in (None, False, "true", 1):
        refused = refusal(known.recognize(token(email="bob@here.example", email_verified=verified), NOW_MS))
        assert "not verified" in refused.message


# --- attacks -------------------------------------------------------------------------------------------------

PEM = FIRST.as_pem(private=False)
DEEP = part(b"[" * 8000)
FORGED: dict[str, Callable[[], str]] = {
    "no algorithm": lambda: unsigned({"alg": "none", "kid": "one"}),
    "no algorithm, in other letters": lambda: unsigned({"alg": "nOnE", "kid": "one"}),
    "no header that says one": lambda: unsigned({"kid": "one"}),
    "an algorithm that is no text": lambda: unsigned({"alg": ["RS256"], "kid": "one"}),
    "the public key as a secret": lambda: signed_with_secret(PEM),
    "the public key as a secret, without the end of its last line": lambda: signed_with_secret(PEM.strip()),
    "the secret of nobody": lambda: signed_with_secret(b""),
    "another key of that id": lambda: token(STRANGE),
    "its own key in it": lambda: token(STRANGE, header={"jwk": STRANGE.as_dict(private=False)}),
    "where its key is": lambda: token(STRANGE, header={"jku": "https://evil.example/keys"}),
    "another's signature": lambda: token().rpartition(".")[0] + "." + token(sub="bob").rpartition(".")[2],
    "no signature": lambda: token().rpartition(".")[0] + ".",
    "an algorithm that is not taken": lambda: token(FIRST, "RS512"),
    "an algorithm that the key is not for": lambda: unsigned({"alg": "ES256", "kid": "one"}, None, b"x" * 64),
    "an extension that must be understood": lambda: unsigned({"alg": "RS256", "kid": "one", "crit": ["x"], "x": 1}),
    "an id that is no text": lambda: unsigned({"alg": "RS256", "kid": {"one": 1}}),
    "an id without end": lambda: unsigned({"alg": "RS256", "kid": "x" * 1000}),
    "a header that is no object": lambda: unsigned([]),  # type: ignore[arg-type]
    "a header without end": lambda: f"{DEEP}.{DEEP}.x",
    "nothing": lambda: "..",
    "what is no base64": lambda: "\x00.\xff.☃",
    "a token to log somebody out": lambda: token(header={"typ": "logout+jwt"}),
    "expired": lambda: token(exp=NOW_S - 30),
    "without an end": lambda: token(exp=None),
    "an end that is no number": lambda: token(exp="never"),
    "an end that is true": lambda: token(exp=True),
    "not yet": lambda: token(nbf=NOW_S + 31),
    "of the future": lambda: token(iat=NOW_S + 31),
    "for another": lambda: token(aud="billing"),
    "for others": lambda: token(aud=["billing", "other"]),
    "for nobody": lambda: token(aud=None),
    "for all that have that letter": lambda: token(aud="t"),
    "of another issuer": lambda: token(iss="https://login.example/"),
    "of no issuer": lambda: token(iss=None),
    "of several issuers": lambda: token(iss=[ISSUER, "https://evil.example"]),
    "of nobody": lambda: token(sub=None),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_token_that_is_not_signed_for_this_cluster_and_this_time_is_refused(name: str) -> None:
    text, one = FORGED[name](), issuer()
    refused = refusal(one.recognize(text, NOW_MS))
    assert refused.code == "UNAUTHENTICATED" and not refused.retriable
    assert len(refused.message) < 160 and text not in refused.message
    assert one.due() == RULES.refresh_s, "nobody has the keys fetched by that"


def test_the_clock_of_the_issuer_may_differ_by_the_leeway() -> None:
    one = issuer()
    assert isinstance(one.recognize(token(exp=NOW_S - 29), NOW_MS), ClientIdentity)
    assert isinstance(one.recognize(token(nbf=NOW_S + 30, iat=NOW_S + 30), NOW_MS), ClientIdentity)


def test_a_huge_token_is_refused_by_its_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one, text = issuer(), token(more="x" * MAX_TOKEN_BYTES)
    monkeypatch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("it was looked at"))
    assert "larger than" in refusal(one.recognize(text, NOW_MS)).message


@pytest.mark.parametrize("end", [10**400, 1e308, 1 << 62])
def test_an_end_in_the_far_future_is_a_time_that_can_be_waited_for(end: float) -> None:
    found = issuer().recognize(token(exp=end), NOW_MS)
    assert isinstance(found, ClientIdentity) and (found.expires_ms - NOW_MS) / 1000 < 1 << 41


def test_keys_that_can_sign_or_are_for_something_else_or_are_weak_are_left_out() -> None:
    secret = OctKey.import_key("k" * 64, {"kid": "secret"})
    others = (rsa("enc", use="enc"), secret, ECKey.generate_key("P-256", {"kid": "curve", "alg": "ES384"}))
    weak = {"kty": "RSA", "kid": "weak", "n": part(((1 << 1023) + 1).to_bytes(128, "big")), "e": "AQAB"}
    listed = json.loads(key_set(*others)) | {}
    listed["keys"] += [weak, {"kty": "RSA", "kid": "half"}, 7, {"kty": ["RSA"]}]
    one = Issuer(OidcRules(ISSUER, (HERE,)))
    one.on_try(0.0)
    with pytest.raises(ValueError, match="no key of it is for RS256"):
        one.on_keys(json.dumps(listed).encode(), 0.0)
    listed["keys"] += json.loads(key_set(FIRST))["keys"]
    one.on_keys(json.dumps(listed).encode(), 0.0)
    assert isinstance(one.recognize(token(header={"kid": None}), NOW_MS), ClientIdentity), "there is one that suits"


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 100_000, b'{"keys": []}'])
def test_an_invalid_set_of_keys_leaves_the_former_in_force(data: bytes) -> None:
    one = issuer()
    one.on_try(300.0)
    with pytest.raises(ValueError):
        one.on_keys(data, 300.0)
    one.on_failure(300.0)
    assert isinstance(one.recognize(token(), NOW_MS), ClientIdentity)


# --- keys that change ----------------------------------------------------------------------------------------


def test_an_unknown_key_is_fetched_and_the_client_gets_a_retriable_error() -> None:
    one = issuer()
    assert one.due() == RULES.refresh_s
    refused = refusal(one.recognize(token(SECOND), NOW_MS))
    assert refused.code == "OFFLINE" and refused.retriable and refused.pause_s
    assert one.due() == REFETCH_S
    one.on_try(REFETCH_S)
    assert refusal(one.recognize(token(SECOND), NOW_MS)).retriable, "it is being asked for"
    one.on_keys(key_set(FIRST, SECOND), REFETCH_S)
    assert isinstance(one.recognize(token(SECOND), NOW_MS), ClientIdentity)
    assert isinstance(one.recognize(token(), NOW_MS), ClientIdentity), "the former is still listed"


def test_a_key_that_is_listed_no_more_counts_no_more() -> None:
    one = issuer()
    one.on_try(300.0)
    one.on_keys(key_set(SECOND), 300.0)
    assert refusal(one.recognize(token(), NOW_MS)).retriable


def test_a_key_that_the_issuer_does_not_have_is_refused_for_good_when_it_was_asked() -> None:
    one = issuer()
    assert refusal(one.recognize(token(SECOND), NOW_MS)).retriable
    one.on_try(REFETCH_S)
    one.on_keys(key_set(FIRST), REFETCH_S)
    refused = refusal(one.recognize(token(SECOND), NOW_MS))
    assert refused.code == "UNAUTHENTICATED" and "has no such key" in refused.message
    assert one.due() == REFETCH_S + RULES.refresh_s, "nobody has it asked again"


def test_a_token_that_names_no_key_may_be_signed_by_a_new_one() -> None:
    one, text = issuer(FIRST), token(SECOND, header={"kid": None})
    refused = refusal(one.recognize(text, NOW_MS))
    assert refused.retriable and one.due() == REFETCH_S
    one.on_try(REFETCH_S)
    one.on_keys(key_set(SECOND), REFETCH_S)
    assert isinstance(one.recognize(text, NOW_MS), ClientIdentity)
    forged = token(STRANGE, header={"kid": None})
    assert refusal(one.recognize(forged, NOW_MS)).retriable
    one.on_try(2 * REFETCH_S)
    one.on_keys(key_set(SECOND), 2 * REFETCH_S)
    refused = refusal(one.recognize(forged, NOW_MS))
    assert refused.code == "UNAUTHENTICATED" and one.due() == 2 * REFETCH_S + RULES.refresh_s


def test_invented_key_ids_cause_few_fetches_and_take_bounded_memory() -> None:
    one = issuer()
    for number in range(3 * MAX_UNKNOWN):
        refusal(one.recognize(unsigned({"alg": "RS256", "kid": f"k{number}"}), NOW_MS))
        assert one.due() == REFETCH_S
    assert len(one._unknown) <= MAX_UNKNOWN


def test_while_the_keys_cannot_be_had_the_former_count_and_not_for_ever() -> None:
    one = issuer()
    for now in (300.0, 700.0, 1000.0):
        one.on_try(now)
        one.on_failure(now)
        assert one.due() == now + REFETCH_S
        assert isinstance(one.recognize(token(), NOW_MS), ClientIdentity)
    one.on_try(1000.1)
    one.on_failure(1000.1)
    refused = refusal(one.recognize(token(), NOW_MS))
    assert refused.code == "OFFLINE" and "cannot be had" in refused.message


def test_before_there_are_keys_a_client_gets_a_retriable_error() -> None:
    one = Issuer(RULES)
    assert one.due() < 0
    assert refusal(one.recognize(token(), NOW_MS)).retriable
    assert not refusal(one.recognize("..", NOW_MS)).retriable


# --- where the keys come from --------------------------------------------------------------------------------


@asynccontextmanager
async def web(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives these answers, then none: it hangs up. Its URL, and what it was asked."""
    asked: list[bytes] = []
    left = list(answers)

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            asked.append(await stream.receive_some(4096))
            if left:
                with contextlib.suppress(trio.BrokenResourceError):  # it may not want to read that much
                    await stream.send_all(left.pop(0))

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/keys?a=b", asked
        nursery.cancel_scope.cancel()


def answered(body: bytes, status: str = "200 OK", header: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{header}content-length: {len(body)}\r\n\r\n".encode() + body


def no_tls() -> Any:
    pytest.fail("there is no TLS here")


def test_keys_are_got_by_one_plain_request() -> None:
    async def act() -> None:
        with trio.fail_after(30):
            async with web(answered(key_set(FIRST))) as (url, asked):
                assert await issuer_keys.fetch(url, no_tls) == key_set(FIRST)
        assert asked[0].startswith(b"GET /keys?a=b HTTP/1.1\r\n") and b"connection: close" in asked[0].lower()

    trio.run(act)


ODD = {
    "elsewhere": (answered(b"", "302 Found", "location: http://127.0.0.1:1/\r\n"), "HTTP 302"),
    "an error": (answered(key_set(FIRST), "500 Oops"), "HTTP 500"),
    "too much": (answered(b"x" * (MAX_BYTES + 1)), "larger than"),
    "too much, in pieces of unknown number": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65536 + b"\r\n10000\r\n"
        + b"x" * 65536 + b"\r\n10000\r\n" + b"x" * 65536 + b"\r\n10000\r\n" + b"x" * 65536 + b"\r\n1\r\nx\r\n",
        "larger than",
    ),
    "half of it": (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "without sending complete"),
    "no HTTP": (b"220 mail.example ready\r\n\r\n", ""),
    "nothing": (b"", ""),
    "headers without end": (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 40_000, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_answer_is_a_failure_and_the_former_keys_stay_in_force(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, why = ODD[name]
    done = trio.Event()
    told: list[str] = []
    with trio.fail_after(30):
        async with web(data) as (url, _), trio.open_nursery() as nursery:
            one = IssuerKeys(RULES, url, "", trio.current_time)
            one._issuer.on_keys(key_set(FIRST), trio.current_time())

            def on_warning(event: str, where: str, error: str) -> None:
                told.append(error)
                done.set()

            monkeypatch.setattr(one, "_log", type("Log", (), {"warning": staticmethod(on_warning)}))
            nursery.start_soon(one.run)
            await done.wait()
            nursery.cancel_scope.cancel()
    assert why in told[0]
    assert isinstance(one.recognize(token(), NOW_MS), ClientIdentity)


async def test_an_issuer_that_does_not_answer_in_time_is_given_up_and_asked_again(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(issuer_keys, "fetch", never)
    one = IssuerKeys(RULES, "https://login.example/keys", "", trio.current_time)
    failures: list[float] = []
    one._log = type("Log", (), {"warning": staticmethod(lambda *_, **__: failures.append(trio.current_time()))})
    start = trio.current_time()
    with trio.move_on_after(25):
        await one.run()
    assert failures == [start + 10, start + 20]


async def test_a_file_is_read_again_as_soon_as_a_key_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(oidc, "REFETCH_S", 0.0)
    path, changed = tmp_path / "keys.json", [trio.Event()]
    path.write_bytes(key_set(FIRST))
    one = IssuerKeys(RULES, str(path), "", trio.current_time)
    one._log = type("Log", (), {"info": staticmethod(lambda *_, **__: changed[0].set())})
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await changed[0].wait()
            assert isinstance(one.recognize(token(), NOW_MS), ClientIdentity)
            changed[0] = trio.Event()
            path.write_bytes(key_set(FIRST, SECOND))
            assert refusal(one.recognize(token(SECOND), NOW_MS)).retriable
            await changed[0].wait()
            assert isinstance(one.recognize(token(SECOND), NOW_MS), ClientIdentity)
            nursery.cancel_scope.cancel()


# --- the gateway ---------------------------------------------------------------------------------------------


def test_tokens_of_the_issuer_go_beside_those_of_the_cluster() -> None:
    class Known:
        def recognize(self, token: str, wall_ms: int) -> ClientIdentity:
            return ClientIdentity("oidc-alice", expires_ms=2000)

    guard = Authorizer(AuthorizerSettings(authentication=True), Known())
    guard.update(Access())
    found = guard.recognize("a.b.c", None, 0)
    assert found == ClientIdentity("oidc-alice", expires_ms=2000)
    assert not guard.is_invalid(found, 1999) and guard.is_invalid(found, 2000)
    assert guard.next_expiry_ms([found, ClientIdentity("bob")]) == 2000
    assert refusal(guard.recognize("tide_0123456789abcdef_x", None, 0)).code == "UNAUTHENTICATED"
    without = Authorizer(AuthorizerSettings())
    assert refusal(without.recognize("a.b.c", None, 0)).code == "UNAUTHENTICATED"


GOOD = {"issuer": ISSUER, "audience": "tidelog", "jwks": "https://login.example/keys"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"audience": ""}, "oidc.audience"),
        ({"jwks": ""}, "oidc.jwks"),
        ({"jwks": "http://login.example/keys"}, "must be https"),
        ({"jwks": "ftp://127.0.0.1/keys"}, "must be https"),
        ({"jwks": "https://"}, "must be https"),
        ({"algorithms": "RS256,HS256"}, "'HS256' is not one of"),
        ({"algorithms": "none"}, "'none' is not one of"),
        ({"algorithms": ""}, "is not one of"),
        ({"issuer": ""}, "without issuer"),
        ({"max_age_s": "60"}, "max_age_s must not be smaller"),
    ],
)
def test_settings_that_would_take_anybodys_tokens_are_refused(change: dict[str, str], why: str) -> None:
    def loaded(told: dict[str, str]) -> GatewayConfig:
        flags = {f"oidc.{name}": text for name, text in told.items()}
        return load(GatewayConfig, flags=flags, environ={})

    assert loaded(GOOD).oidc_rules == OidcRules(ISSUER, ("tidelog",))
    assert loaded(GOOD | {"jwks": "http://127.0.0.1:9400/jwks"}).oidc_rules is not None
    with pytest.raises(ConfigError, match=why.replace(".", r"\.")):
        loaded(GOOD | change)

"""When the certificate of a process expires.

Python decodes a certificate only for an end that has verified it. So two TLS handshakes are done in memory. The first
one gets the certificate. The second one has that certificate as its only trust anchor and ignores its dates.
"""

from __future__ import annotations

import ssl

NO_CHECK_TIME = 0x200000
"""OpenSSL's flag ``X509_V_FLAG_NO_CHECK_TIME``: a certificate that has expired, or is not valid yet, is verified,
too."""
MOST_TURNS = 4
"""Most turns of a handshake in memory. TLS 1.3 takes two, TLS 1.2 three."""


def expiry_of(cert: str, key: str) -> float | None:
    """Return when a certificate expires, in seconds since 1970. ``cert`` and ``key`` are paths of PEM files; of a
    chain the first certificate counts. None if no server may show that certificate, or it cannot be decoded. Raises
    ``OSError`` if the files cannot be read or do not belong together."""
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(cert, key, password=lambda: "")
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    verifying = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    verifying.check_hostname = False
    verifying.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(NO_CHECK_TIME)
    try:
        shown = _handshake(accepting, unverified).getpeercert(binary_form=True)
        assert shown is not None, "every server shows one"
        verifying.load_verify_locations(cadata=shown)
        certificate = _handshake(accepting, verifying).getpeercert()
        assert certificate, "it was verified"
        return ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    except (ssl.SSLError, ValueError):
        return None


def _handshake(accepting: ssl.SSLContext, connecting: ssl.SSLContext) -> ssl.SSLObject:
    """Do a TLS handshake in memory, and return the connecting end. Raises ``ssl.SSLError`` if it fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = accepting.wrap_bio(to_server, to_client, server_side=True)
    client = connecting.wrap_bio(to_client, to_server)
    for _ in range(MOST_TURNS):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if end is client:
                return client
    raise ssl.SSLError("the handshake does not end")

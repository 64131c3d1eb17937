"""A certificate authority of one folder, for development and tests. Needs the package ``cryptography``.

``ca.pem`` and ``ca.key`` are the authority; every certificate is ``NAME.pem`` with its key ``NAME.key``. Its
alternative names name its holder (``tidelog.net.tls``). All keys are on P-256, readable by their owner only.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidelog.errors import ConfigError
from tidelog.net.tls import URI, NodeIdentity, TlsOptions

EARLIER = timedelta(minutes=5)
"""Time by which certificates are valid before they were made, since clocks differ."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority for development and tests: its certificate and key, and the ``folder`` to which it
    writes the certificates that it issues. ``open_authority`` reads or makes one; creating this object reads and
    writes no file."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def ca(self) -> Path:
        """Return the path of the authority's own certificate, ``ca.pem``, which all ends trust."""
        return self.folder / "ca.pem"

    def files(self, name: str) -> TlsOptions:
        """Return the paths of the certificate ``name``, its key and the authority, as options for TLS. The files need
        not exist."""
        return TlsOptions(str(self.ca), str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key"))

    def issue(
        self,
        name: str,
        identities: Iterable[NodeIdentity],
        hosts: Iterable[str],
        now: datetime,
        lasts: timedelta,
    ) -> TlsOptions:
        """Make a key and a certificate for these identities and host names, and write both to the folder; files of
        the same ``name`` are replaced. The certificate serves both ends of a connection, from ``now`` for the time
        ``lasts``; a negative time makes one that has expired. Return the paths of the files."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(f"{URI}{identity}") for identity in identities
        ]
        names += [_host(host) for host in hosts]
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(name, self.certificate.subject, key.public_key(), now, lasts)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        builder = builder.add_extension(_authority_key(self.certificate), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        files = self.files(name)
        _write(Path(files.key), _pem(key), 0o600)
        _write(Path(files.cert), _pem(builder.sign(self.key, hashes.SHA256())), 0o644)
        return files


def open_authority(folder: Path, now: datetime, lasts: timedelta, name: str = "Tidelog development CA") -> Authority:
    """Read the authority of a folder. If the folder has none, make one that is valid for the time ``lasts``, and
    write it to the folder, which is created if necessary. Raises ``ConfigError`` if the folder has only part of an
    authority or one that cannot be read."""
    certificate, key = folder / "ca.pem", folder / "ca.key"
    if certificate.exists() or key.exists():
        try:
            made = serialization.load_pem_private_key(key.read_bytes(), None)
            if not isinstance(made, ec.EllipticCurvePrivateKey):
                raise ConfigError(f"{key}: not a key that 'tidelog certs' made; choose another folder")
            return Authority(folder, x509.load_pem_x509_certificate(certificate.read_bytes()), made)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{folder}: holds half an authority: {error}; choose another folder") from error
    folder.mkdir(parents=True, exist_ok=True)
    new = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(name, subject, new.public_key(), now, lasts)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    signed = builder.sign(new, hashes.SHA256())
    _write(key, _pem(new), 0o600)
    _write(certificate, _pem(signed), 0o644)
    return Authority(folder, signed, new)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lasts: timedelta
) -> x509.CertificateBuilder:
    """Return a builder for a certificate with serial number, names, public key and validity; the caller adds
    extensions and signs it. A negative ``lasts`` makes it expired."""
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    builder = builder.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
    builder = builder.issuer_name(issuer).public_key(key)
    builder = builder.not_valid_before(now - EARLIER + min(lasts, timedelta())).not_valid_after(now + lasts)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Return the key-usage extension: signing certificates for an authority (``signs``), digital signatures for an
    end of a connection."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key(certificate: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    known = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)


def _host(host: str) -> x509.GeneralName:
    """Return an alternative name for a host: an IP address if ``host`` is one, else a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(made: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    """Return a certificate or an unencrypted private key as PEM."""
    if isinstance(made, x509.Certificate):
        return made.public_bytes(serialization.Encoding.PEM)
    none = serialization.NoEncryption()
    return made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file with access rights ``mode``: write a new file and rename it, so that no reader sees half a
    file."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)

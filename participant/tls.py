"""Mutual TLS between machines, from the one secret that a run has.

Whoever knows the run's token can make its certificate authority: the private key is derived from the token
(HKDF, RFC 5869), so nothing else has to be handed out. Each process makes a key of its own and has the
authority sign it; both sides of a connection show such a certificate and take no other, so a stranger is
turned away by the TLS handshake, before a byte of what it says is looked at.

Certificates name the run, not a host: what is proven is "one of this run", at whatever address.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
from typing import NamedTuple

from cutline.errors import MissingPackage

__all__ = ("Credentials", "credentials_of")

# The clocks of two machines need not agree, and a run's authority ends with the run's secret.
_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
_UNTIL = datetime.datetime(2099, 1, 1, tzinfo=datetime.timezone.utc)


class Credentials(NamedTuple):
    """PEM documents of one process; `name` is what every certificate of the run is made out to."""

    name: str
    authority: bytes
    certificate: bytes
    key: bytes


@functools.lru_cache(maxsize=8)
def credentials_of(token: bytes) -> Credentials:
    """This process's certificate in the run whose secret is `token`.

    Raises:
        MissingPackage: the package `cryptography` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise MissingPackage(
            "links between machines are encrypted by the package 'cryptography', which is not installed: "
            "pip install 'cutline[ray]' on every machine",
            package="cryptography",
        ) from error
    name = f"run-{hashlib.sha256(b'name of a run' + token).hexdigest()[:32]}.cutline.invalid"
    secret = HKDF(hashes.SHA256(), 48, salt=None, info=b"cutline link authority 1").derive(token)
    curve = ec.SECP256R1()
    # 48 bytes, so that the remainder favours no key (NIST SP 800-186, A.2.1).
    authority_key = ec.derive_private_key(1 + int.from_bytes(secret, "big") % (curve.group_order - 1), curve)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a run")])

    def signed(builder: x509.CertificateBuilder) -> bytes:
        builder = builder.issuer_name(issuer).not_valid_before(_FROM).not_valid_after(_UNTIL)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority = signed(
        x509.CertificateBuilder()
        .subject_name(issuer)
        .public_key(authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    key = ec.generate_private_key(curve)
    certificate = signed(
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "member of a run")]))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Credentials(name, authority, certificate, pem)

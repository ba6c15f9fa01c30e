"""Websites on loopback behind TLS, each with another fault, and the authority that signed some."""

from __future__ import annotations

import contextlib
import datetime
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.websites import Site, running

_YEAR = datetime.timedelta(days=365)


class Authority:
    """A certificate authority; *path* is its own certificate, for ``SSL_CERT_FILE``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Authority of the tests")
        self.path = folder / "authority.pem"
        self.path.write_bytes(
            self._builder(self._name, self._key, _now() + _YEAR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    def server(
        self, name: str = "localhost", *, expired: bool = False, signed: bool = True
    ) -> ssl.SSLContext:
        """Return a server's context with a certificate for *name*, by default one in order."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = _now() + (-_YEAR if expired else _YEAR)
        certificate = (
            self._builder(_name(name), key, end, None if signed else _name(name))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(self._key if signed else key, hashes.SHA256())
        )
        path = self._folder / "server.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        end: datetime.datetime,
        issuer: x509.Name | None = None,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - 3 * _YEAR)
            .not_valid_after(end)
        )


@contextlib.contextmanager
def tls_sites(authority: Authority) -> Iterator[dict[str, Site]]:
    """Serve ``https://localhost:PORT/`` in order, and with each fault; yield the sites by name."""
    old = authority.server()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")  # without it OpenSSL does not speak the old versions
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    contexts = {
        "in order": authority.server(),
        "self-signed": authority.server(signed=False),
        "expired": authority.server(expired=True),
        "wrong name": authority.server("other.example"),
        "old protocol": old,
    }
    with contextlib.ExitStack() as stack:
        sites = {name: Site({"/": "<p>hello</p>"}) for name in contexts}
        for name, site in sites.items():
            # The handshake belongs to the thread of a connection, not to the one that accepts.
            site.socket = contexts[name].wrap_socket(
                site.socket, server_side=True, do_handshake_on_connect=False
            )
            stack.enter_context(running(site))
        yield sites


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)

"""Certificates of a test's own authority, for both sides of an engine's TLS port."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
    encipher_only=False, decipher_only=False,
)  # fmt: skip


class Authority:
    """A CA in a directory: ``ca.pem`` there is what others are to trust."""

    def __init__(self, directory: Path, name: str = "slurm-elastic test authority") -> None:
        self.directory = directory
        directory.mkdir(mode=0o700)
        self._name, self._key = _named(name), ec.generate_private_key(ec.SECP256R1())
        # All that Python's strict check of certificates (from 3.13 on) asks for.
        made = (
            _builder(self._name, self._name, self._key, -DAY, DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS, critical=True)
        )
        self.ca_file = _written(directory / "ca.pem", made.sign(self._key, hashes.SHA256()))

    def server(self, addresses: Sequence[str]) -> tuple[str, str]:
        """Certificate and key of one that is reached by these addresses."""
        names = [x509.IPAddress(ip_address(one)) for one in addresses]
        return self._issue(
            "server", ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(names)
        )

    def client(self, name: str = "client", *, expired: bool = False) -> tuple[str, str]:
        """Certificate and key of one that may come in."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, None, expired=expired)

    def _issue(
        self,
        name: str,
        usage: x509.ObjectIdentifier,
        more: x509.SubjectAlternativeName | None,
        *,
        expired: bool = False,
    ) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        until = -DAY / 2 if expired else DAY
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = (
            _builder(_named(name), self._name, key, -DAY, until)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(by, critical=False)
        )
        if more is not None:
            made = made.add_extension(more, critical=False)
        path = self.directory / f"{name}-key.pem"
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        signed = made.sign(self._key, hashes.SHA256())
        return _written(self.directory / f"{name}-cert.pem", signed), str(path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: timedelta,
    ends: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _written(path: Path, certificate: x509.Certificate) -> str:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return str(path)

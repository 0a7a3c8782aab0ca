"""A first certificate for a webhook's server, as the Secret that the server mounts.

Programs that renew such a Secret themselves (Kueue and others with cert-controller's rotator) write it only after they
have started without one, and the kubelet shows it to them at its next look, up to a minute later. With a valid one in
place they serve at once, and renew it when its time comes.

The shape is the rotator's own, so that it takes it for valid: RSA keys in PKCS #1, an authority whose name is also its
DNS name: https://github.com/open-policy-agent/cert-controller/blob/v0.16.0/pkg/rotator/rotator.go
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from myriad.kube.objects import Json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import rsa

#: As the rotator's own: it renews them 90 days before.
VALID = timedelta(days=3650)
#: Clocks of machines differ.
SKEW = timedelta(hours=1)
KEY_BITS = 2048


@dataclass(frozen=True, slots=True)
class Certificate:
    """A Secret, and what its first certificate is for.

    Args:
        namespace, name: of the Secret.
        dns_names: names of the service; the first is the common name.
        authority: common name of the authority that signs it.
    """

    namespace: str
    name: str
    dns_names: tuple[str, ...]
    authority: str

    def __str__(self) -> str:
        return f"certificate in Secret {self.namespace}/{self.name}"


def secret(certificate: Certificate) -> Json:
    """The Secret with a certificate that is issued now."""
    content = issue(certificate.dns_names, authority=certificate.authority)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": certificate.namespace, "name": certificate.name},
        "data": {name: base64.b64encode(value).decode() for name, value in content.items()},
    }


def issue(dns_names: Sequence[str], *, authority: str, now: datetime | None = None) -> dict[str, bytes]:
    """An authority of its own and a server certificate, in PEM, under the names that such a Secret has.

    Args:
        dns_names: names of the service; the first is the common name.
        authority: common name of the authority.
        now: the present; the machine's clock when not given.
    """
    # Here: the scheduler extension imports this package and has no cryptography.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    begin = (now or datetime.now(UTC)) - SKEW
    end = begin + SKEW + VALID
    ca_key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority)])
    usage = {
        "digital_signature": True,
        "key_encipherment": True,
        "content_commitment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "crl_sign": False,
        "encipher_only": False,
        "decipher_only": False,
    }
    ca = (
        x509.CertificateBuilder(ca_name, ca_name, ca_key.public_key(), x509.random_serial_number(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, **usage), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(authority)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, dns_names[0][:64])])
    server = (
        x509.CertificateBuilder(ca_name, name, key.public_key(), x509.random_serial_number(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=False, **usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(text) for text in dns_names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return {
        "ca.crt": ca.public_bytes(Encoding.PEM),
        "ca.key": _pkcs1(ca_key),
        "tls.crt": server.public_bytes(Encoding.PEM),
        "tls.key": _pkcs1(key),
    }


def _pkcs1(key: rsa.RSAPrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())

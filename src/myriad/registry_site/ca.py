"""The site's own certificate authority, and the certificates of its registries.

One authority, made once on the controller and kept in the site's secrets folder, or given by the operator. Nodes are
told to trust it for the site's registry and for nothing else. Keys are ECDSA P-256: a handshake costs a registry a
tenth of what RSA does, and a thousand nodes shake hands at once.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from myriad.errors import InputError

CA_CERTIFICATE = "registry-ca.crt"
CA_KEY = "registry-ca.key"
README = "README"
_CA_YEARS = 10
#: Validity of a registry's certificate; a site run that finds less than RENEW_BEFORE left issues another.
VALID = timedelta(days=825)
RENEW_BEFORE = timedelta(days=60)
_SKEW = timedelta(hours=1)
_WORDS = """\
This folder holds secrets of the site. Keep it out of version control, and back it up.

registry-ca.crt       the authority of the site's registry: public, every node trusts it for the registry
registry-ca.key       its private key: whoever has it can pose as the site's registry
registry-HOST.crt/key certificate and key of the registry on HOST, issued again before it expires
registry-users/       passwords of teams for the registry, one file each

Lost keys: remove registry-ca.crt and registry-ca.key and run the site again. All nodes then trust the new authority.
"""


@dataclass(frozen=True)
class Made:
    """What a call found or made.

    Attributes:
        ca: certificate of the authority in PEM.
        certificate, key: paths of the registry's certificate chain and key on the controller.
        changed: what was made, in words; empty where all was there.
    """

    ca: str
    certificate: Path
    key: Path
    changed: tuple[str, ...] = ()


def ensure(
    folder: Path,
    host: str,
    names: Sequence[str],
    *,
    site: str = "site",
    given_ca: tuple[Path, Path] | None = None,
    check: bool = False,
    now: datetime | None = None,
) -> Made:
    """The authority and a certificate for one registry; what is there and good stays.

    Args:
        folder: the site's secrets folder; made when missing, for its owner alone.
        host: the registry's host, for file names.
        names: DNS names and addresses by which it is reached.
        site: name of the site, for the authority's name.
        given_ca: certificate and key of an authority that the operator has; its own is made otherwise.
        check: only tell.
        now: the present.

    Raises:
        InputError: a file that is there is no certificate or key, they do not belong together, or the authority has
            expired.
    """
    moment = now or datetime.now(UTC)
    changed: list[str] = []
    if not check:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        if not (folder / README).exists():
            _write(folder / README, _WORDS.encode(), 0o600)
    ca_paths = given_ca or (folder / CA_CERTIFICATE, folder / CA_KEY)
    if given_ca is None and not ca_paths[0].exists() and not ca_paths[1].exists():
        changed.append(f"authority {ca_paths[0]}")
        if check:
            return Made("", folder / f"registry-{host}.crt", folder / f"registry-{host}.key", tuple(changed))
        _make_authority(ca_paths, site, moment)
    authority, ca_key = _read_authority(ca_paths, moment)
    certificate, key = folder / f"registry-{host}.crt", folder / f"registry-{host}.key"
    reason = _why_anew(certificate, key, authority, names, moment)
    if reason:
        changed.append(f"certificate of {host}: {reason}")
        if not check:
            _issue(certificate, key, authority, ca_key, host, names, moment)
    return Made(authority.public_bytes(Encoding.PEM).decode(), certificate, key, tuple(changed))


def _make_authority(paths: tuple[Path, Path], site: str, moment: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Myriad {site} registry authority"[:64])])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - _SKEW)
        .not_valid_after(moment + timedelta(days=365 * _CA_YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(paths[1], _key_bytes(key), 0o600)
    _write(paths[0], built.public_bytes(Encoding.PEM), 0o644)


def _read_authority(paths: tuple[Path, Path], moment: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key = _certificate(paths[0]), _private_key(paths[1])
    if _public(certificate.public_key()) != _public(key.public_key()):
        raise InputError(
            f"is not the certificate of the key {paths[1]}",
            where=str(paths[0]),
            hint="give the pair that belongs together, or remove both for a new authority",
        )
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        constraints = None
    if constraints is None or not constraints.ca:
        raise InputError("is no authority: it may not sign certificates", where=str(paths[0]), hint="give a CA's")
    if certificate.not_valid_after_utc <= moment:
        raise InputError(
            f"the authority expired on {certificate.not_valid_after_utc:%Y-%m-%d}",
            where=str(paths[0]),
            hint="remove it and its key for a new one, or give another; every node then gets it with the next site run",
        )
    return certificate, key


def _why_anew(path: Path, key_path: Path, authority: x509.Certificate, names: Sequence[str], moment: datetime) -> str:
    """Why a certificate has to be issued; empty where the one that is there serves."""
    if not path.exists() or not key_path.exists():
        return "there is none"
    certificate, key = _certificate(path), _private_key(key_path)
    if _public(certificate.public_key()) != _public(key.public_key()):
        return "it and its key do not belong together"
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return "another authority issued it"
    # Another one would not outlive its authority either.
    ends = min(certificate.not_valid_after_utc, authority.not_valid_after_utc - timedelta(seconds=1))
    if certificate.not_valid_after_utc - moment < RENEW_BEFORE and ends == certificate.not_valid_after_utc:
        return f"it ends on {certificate.not_valid_after_utc:%Y-%m-%d}"
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "it names no host"
    lacking = [name for name in names if _general_name(name) not in found]
    return f"it does not name {', '.join(lacking)}" if lacking else ""


def _issue(
    path: Path,
    key_path: Path,
    authority: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    host: str,
    names: Sequence[str],
    moment: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(moment + VALID, authority.not_valid_after_utc)
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    _write(key_path, _key_bytes(key), 0o600)
    chain = built.public_bytes(Encoding.PEM) + authority.public_bytes(Encoding.PEM)
    _write(path, chain, 0o644)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise InputError("is no certificate in PEM", where=str(path), hint="give another, or remove it") from error


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, TypeError) as error:
        raise InputError(
            "is no private key in PEM without a passphrase", where=str(path), hint="give another, or remove it"
        ) from error
    # An operator's authority may be RSA; both kinds sign alike.
    return key  # type: ignore[return-value]


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write by rename; a key is never readable by others, not even for a moment."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

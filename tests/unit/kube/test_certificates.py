"""The first certificate of a webhook: valid as the API server and the program that renews it look at it."""

from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from myriad.kube.certificates import Certificate, issue, secret

NAME = "kueue-webhook-service.kueue-system.svc"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def issued() -> dict[str, bytes]:
    return issue([NAME], authority="kueue-ca", now=NOW)


def verifier(issued: dict[str, bytes], name: str):
    store = Store([x509.load_pem_x509_certificate(issued["ca.crt"])])
    return PolicyBuilder().store(store).time(NOW.replace(tzinfo=None)).build_server_verifier(x509.DNSName(name))


def test_it_is_valid_for_the_service_and_for_no_other_name(issued):
    server = x509.load_pem_x509_certificate(issued["tls.crt"])
    assert verifier(issued, NAME).verify(server, [])
    with pytest.raises(VerificationError):
        verifier(issued, "other.kueue-system.svc").verify(server, [])


def test_the_authority_has_the_shape_that_the_rotator_takes_for_valid(issued):
    authority = x509.load_pem_x509_certificate(issued["ca.crt"])
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = authority.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["kueue-ca"]
    # It looks 90 days ahead, and reads keys in PKCS #1 only.
    assert (authority.not_valid_after_utc - NOW).days > 3600
    for name in ("ca.key", "tls.key"):
        assert issued[name].splitlines()[0] == b"-----BEGIN RSA " + b"PRIVATE KEY-----"
        assert serialization.load_pem_private_key(issued[name], None).key_size == 2048


def test_a_server_can_be_started_with_it(issued, tmp_path):
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(issued[name])
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_the_secret_holds_the_four_files_and_each_is_another_one():
    certificate = Certificate("kueue-system", "cert", (NAME,), "kueue-ca")
    one, two = secret(certificate), secret(certificate)
    assert one["metadata"] == {"namespace": "kueue-system", "name": "cert"}
    assert base64.b64decode(one["data"]["tls.crt"]).startswith(b"-----BEGIN CERTIFICATE")
    assert one["data"]["tls.key"] != two["data"]["tls.key"]

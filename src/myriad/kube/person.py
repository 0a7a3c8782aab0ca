"""A kubeconfig for one person: a client certificate that the cluster signs, in a group, for a limited time.

The key is made here and leaves this process only in the file. The cluster's own signer makes the certificate
(https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/), so no authority's key is read.
"""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api, Json
from myriad.kube.kinds import CERTIFICATE_REQUESTS

SIGNER = "kubernetes.io/kube-apiserver-client"
FIELD_MANAGER = "myriad-access"
MIN_S = 600
"""Shortest time that the signer accepts."""


@dataclass(frozen=True, slots=True)
class Person:
    """Whom a certificate is for.

    Attributes:
        name: the user's name.
        groups: groups of the user.
        valid_s: seconds until the certificate ends. The signer may shorten it.
    """

    name: str
    groups: Sequence[str]
    valid_s: int


def issue(api: Api, person: Person, *, wait_s: float = 30.0) -> tuple[bytes, bytes, datetime]:
    """Key and certificate (both PEM) and when it ends.

    Raises:
        MyriadError: the cluster did not sign it.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    oid = x509.NameOID
    subject = x509.Name(
        [
            *(x509.NameAttribute(oid.ORGANIZATION_NAME, group) for group in person.groups),
            x509.NameAttribute(oid.COMMON_NAME, person.name),
        ]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    name = f"myriad-access-{secrets.token_hex(4)}"
    body: Json = {
        "apiVersion": CERTIFICATE_REQUESTS.api_version,
        "kind": CERTIFICATE_REQUESTS.kind,
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
            "signerName": SIGNER,
            "expirationSeconds": max(MIN_S, person.valid_s),
            "usages": ["client auth"],
        },
    }
    api.create(CERTIFICATE_REQUESTS, body)
    try:
        approved = {
            "type": "Approved",
            "status": "True",
            "reason": "MyriadAccess",
            "message": f"asked for by `myriad access grant` for {person.name}",
        }
        api.patch(
            CERTIFICATE_REQUESTS,
            name,
            {"status": {"conditions": [approved]}},
            subresource="approval",
            field_manager=FIELD_MANAGER,
        )
        certificate = _signed(api, name, wait_s)
    finally:
        # The request holds no secret, and nobody needs it afterwards.
        api.delete(CERTIFICATE_REQUESTS, name)
    ends = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, certificate, ends.astimezone(UTC)


def _signed(api: Api, name: str, wait_s: float) -> bytes:
    until = time.monotonic() + wait_s
    while True:
        status = api.get(CERTIFICATE_REQUESTS, name).get("status") or {}
        if status.get("certificate"):
            return base64.b64decode(status["certificate"])
        for condition in status.get("conditions") or []:
            if condition["type"] in ("Failed", "Denied"):
                raise MyriadError(
                    f"the cluster refused to sign the certificate: {condition.get('message') or condition['type']}",
                    where=api.base_url,
                )
        if time.monotonic() > until:
            raise MyriadError(
                f"the cluster has not signed the certificate within {wait_s:.0f} s",
                where=api.base_url,
                hint="its signer runs in kube-controller-manager, with --cluster-signing-cert-file and "
                "--cluster-signing-key-file: look whether that runs; a site with OIDC needs no certificates",
            )
        time.sleep(0.2)


def kubeconfig(admin: Path, person: Person, key: bytes, certificate: bytes, *, namespace: str) -> Json:
    """A kubeconfig of the person for the cluster that an admin's kubeconfig names.

    Raises:
        InputError: the admin's file names no cluster.
    """
    body = yaml.safe_load(admin.read_text(encoding="utf-8")) or {}
    contexts = {entry["name"]: entry["context"] for entry in body.get("contexts") or []}
    clusters = {entry["name"]: dict(entry["cluster"]) for entry in body.get("clusters") or []}
    context = contexts.get(body.get("current-context", ""), {})
    cluster = clusters.get(context.get("cluster", ""))
    if cluster is None:
        raise InputError("names no current context with a cluster", where=str(admin))
    authority = cluster.pop("certificate-authority", None)
    if authority:
        # A path of the controller means nothing to the person who gets the file.
        content = (admin.parent / authority).read_bytes()
        cluster["certificate-authority-data"] = base64.b64encode(content).decode()
    user = {
        "client-certificate-data": base64.b64encode(certificate).decode(),
        "client-key-data": base64.b64encode(key).decode(),
    }
    name = context["cluster"]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": person.name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": person.name, "namespace": namespace}}],
        "current-context": name,
    }


def write(path: Path, content: Json) -> None:
    """Write a kubeconfig that only its owner reads; a file that is there is never replaced.

    Raises:
        InputError: the file exists, or cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InputError("exists already", where=str(path), hint="give --out another name, or remove it") from None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yaml.safe_dump(content, file, sort_keys=False)

"""Signatures that cosign makes and reads: ECDSA P-256 over a simple signing payload, under the tag `sha256-<hex>.sig`.

    sign(open_image(Path("dist/pytorch")), Path("cosign.key"))
    verify("registry.site/myriad/pytorch@sha256:...", Path("cosign.pub"))

Format: https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md and
https://github.com/containers/image/blob/main/docs/containers-signature.5.md (the payload). The signature is
deterministic (RFC 6979): signing the same image twice with the same key gives the same bytes, so a registry that has it
already is sent nothing. There is no transparency log: `cosign verify --key cosign.pub --insecure-ignore-tlog` is the
counterpart.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from myriad.errors import InputError, MyriadError
from myriad.images.oci import MEDIA_TYPE_CONFIG, MEDIA_TYPE_MANIFEST, Layout, canonical_json, sha256_digest
from myriad.images.proof_layout import LayoutImage, open_image
from myriad.images.proof_pull import pull_layout, signature_tag

PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
_PASSWORD = "COSIGN_PASSWORD"  # noqa: S105 - the name of a variable, the one that cosign reads
_TYPE = "cosign container image signature"
_ALGORITHM = ec.ECDSA(hashes.SHA256())


class UnsignedError(MyriadError):
    """The image has no signature."""


class SignatureError(MyriadError):
    """The image has a signature, and it does not hold."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A signature that holds: the digest that was signed, the name that the signer gave it, and the signer's notes."""

    digest: str
    reference: str
    annotations: dict[str, str]


def generate(folder: Path) -> tuple[Path, Path]:
    """Make `cosign.key` and `cosign.pub`. The private key is encrypted where COSIGN_PASSWORD is set.

    Raises:
        InputError: one of them is there already.
    """
    private, public = folder / "cosign.key", folder / "cosign.pub"
    for path in (private, public):
        if path.exists():
            raise InputError("is there already; a key that was used is not overwritten", where=str(path))
    key = ec.generate_private_key(ec.SECP256R1())
    password = os.environ.get(_PASSWORD, "").encode()
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    )
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def sign(image: LayoutImage, key: Path, *, reference: str = "", annotations: dict[str, str] | None = None) -> str:
    """Sign an image of a layout; the signature stands beside it in the layout, and is pushed with it.

    Args:
        image: what is signed.
        key: private key, PEM.
        reference: the name to sign it under; by default the image's own.
        annotations: what the signer adds (`commit`, `pipeline`).

    Returns:
        The digest of the signature's manifest. Signatures of other keys stay beside it.

    Raises:
        InputError: the key is none, encrypted without COSIGN_PASSWORD, or of another kind.
    """
    private = load_private(key)
    payload = canonical_json(
        {
            "critical": {
                "identity": {
                    "docker-reference": reference or image.ref.partition("@")[0].rpartition(":")[0] or image.ref
                },
                "image": {"docker-manifest-digest": image.digest},
                "type": _TYPE,
            },
            "optional": annotations or None,
        }
    )
    signature = private.sign(payload, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    layer = {
        "mediaType": PAYLOAD,
        "digest": image.layout.put(payload),
        "size": len(payload),
        "annotations": {SIGNATURE: base64.b64encode(signature).decode()},
    }
    before = image.layout.tagged(signature_tag(image.digest))
    layers = image.layout.manifest(before.digest)["layers"] if before is not None else []
    if layer not in layers:
        layers = [*layers, layer]
    config = canonical_json(
        {
            "architecture": "",
            "config": {},
            "created": "0001-01-01T00:00:00Z",
            "history": [{"created": "0001-01-01T00:00:00Z"} for _ in layers],
            "os": "",
            "rootfs": {"type": "layers", "diff_ids": [one["digest"] for one in layers]},
        }
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE_MANIFEST,
        "config": {"mediaType": MEDIA_TYPE_CONFIG, "digest": image.layout.put(config), "size": len(config)},
        "layers": layers,
    }
    return image.layout.add_manifest(canonical_json(manifest), ref=signature_tag(image.digest)).digest


def verify(target: Path | str, key: Path, *, ref: str = "", ca: Path | None = None, reference: str = "") -> Verified:
    """Check that an image was signed with a key.

    Args:
        target: a layout, or `registry/repo:tag` or `registry/repo@sha256:...`; of a registry only manifests are read.
        key: public key, PEM.
        ref: which image, where a layout holds several.
        ca: certificate of the registry's CA.
        reference: the name that the signer must have signed it under; empty accepts any.

    Raises:
        UnsignedError: there is no signature.
        SignatureError: no signature holds for this key and this image.
        InputError: the key is none.
        MyriadError: the registry does not answer, or lacks the image.
    """
    public = load_public(key)
    path = Path(target)
    if path.exists():
        return _verify(Layout(path), open_image(path, ref).digest, public, key, str(target), reference)
    scratch = Path(tempfile.mkdtemp(prefix="myriad-signature-"))
    try:
        layout = Layout(pull_layout(str(target), scratch / "layout", ca=ca, blobs=False))
        return _verify(layout, layout.images[0].digest, public, key, str(target), reference)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _verify(
    layout: Layout, digest: str, public: ec.EllipticCurvePublicKey, key: Path, where: str, reference: str
) -> Verified:
    entry = layout.tagged(signature_tag(digest))
    if entry is None:
        raise UnsignedError(
            f"the image {digest[:19]}... is not signed: there is no {signature_tag(digest)[:23]}....sig beside it",
            where=where,
            hint="`myriad image sign LAYOUT --key cosign.key` before the push; the push takes the signature along",
        )
    refused = []
    for layer in layout.manifest(entry.digest).get("layers", ()):
        if layer.get("mediaType") != PAYLOAD:
            continue
        try:
            return _holds(layout, layer, digest, public, reference)
        except _RefusedError as error:
            refused.append(str(error))
    raise SignatureError(
        f"no signature of {digest[:19]}... holds for {key}: {'; '.join(dict.fromkeys(refused)) or 'none is listed'}",
        where=where,
        hint="do not run it; ask who signed it, or take the public key that belongs to the signer",
    )


class _RefusedError(Exception):
    """Why one signature does not hold."""


def _holds(
    layout: Layout, layer: dict[str, Any], digest: str, public: ec.EllipticCurvePublicKey, reference: str
) -> Verified:
    path = layout.path(layer["digest"])
    payload = path.read_bytes() if path.is_file() else b""
    if sha256_digest(payload) != layer["digest"]:
        raise _RefusedError("the payload was changed after it was stored" if payload else "the payload is missing")
    encoded = (layer.get("annotations") or {}).get(SIGNATURE)
    if not encoded:
        raise _RefusedError(f"the annotation {SIGNATURE} is missing")
    try:
        public.verify(base64.b64decode(encoded, validate=True), payload, _ALGORITHM)
    except binascii.Error:
        raise _RefusedError("the signature is not base64") from None
    except InvalidSignature:
        raise _RefusedError("it was made with another key, or for another payload") from None
    try:
        body = json.loads(payload)
        critical = body["critical"]
        signed, name = critical["image"]["docker-manifest-digest"], critical["identity"]["docker-reference"]
    except (ValueError, KeyError, TypeError):
        raise _RefusedError("the signed payload is no simple signing payload") from None
    if critical.get("type") != _TYPE:
        raise _RefusedError(f"the payload is of type {critical.get('type')!r}, not {_TYPE!r}")
    if signed != digest:
        raise _RefusedError(f"it signs another image, {str(signed)[:19]}...: it was copied from there")
    if reference and name != reference:
        raise _RefusedError(f"it signs the image as {name!r}, not as {reference!r}")
    return Verified(str(signed), str(name), dict(body.get("optional") or {}))


def load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key of P-256 in PEM. Raises InputError for anything else."""
    data = _read(path)
    if b"ENCRYPTED SIGSTORE PRIVATE KEY" in data or b"ENCRYPTED COSIGN PRIVATE KEY" in data:
        raise InputError(
            "is encrypted in cosign's own way, which only cosign opens",
            where=str(path),
            hint="`myriad image sign --new-key DIR` makes a pair, and `cosign import-key-pair` takes it",
        )
    password = os.environ.get(_PASSWORD, "").encode() or None
    try:
        key = serialization.load_pem_private_key(data, password if b"ENCRYPTED" in data else None)
    except TypeError:
        raise InputError("is encrypted", where=str(path), hint=f"set {_PASSWORD}") from None
    except ValueError as error:
        what = f"{_PASSWORD} does not open it" if b"ENCRYPTED" in data else f"is no private key in PEM ({error})"
        raise InputError(what, where=str(path), hint="`myriad image sign --new-key DIR` makes a pair") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError(
            "is no ECDSA key of P-256", where=str(path), hint="`myriad image sign --new-key DIR` makes a pair"
        )
    return key


def load_public(path: Path) -> ec.EllipticCurvePublicKey:
    """A public key of P-256 in PEM. Raises InputError for anything else."""
    data = _read(path)
    if b"PRIVATE KEY" in data:
        raise InputError(
            "is a private key; checking takes the public one", where=str(path), hint="cosign.pub beside it"
        )
    try:
        key = serialization.load_pem_public_key(data)
    except ValueError as error:
        raise InputError(f"is no public key in PEM ({error})", where=str(path)) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError("is no ECDSA key of P-256", where=str(path))
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), hint="name the key's file") from None

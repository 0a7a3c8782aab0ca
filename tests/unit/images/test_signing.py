"""Signatures: the format of cosign, and each way in which one does not hold with its own sentence."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from myriad.errors import InputError
from myriad.images.oci import Layout, canonical_json
from myriad.images.proof_layout import LayoutImage, open_image
from myriad.images.proof_pull import signature_tag
from myriad.images.signing import SignatureError, UnsignedError, generate, sign, verify
from tests.unit.images import proof_images as small


@pytest.fixture
def image(tmp_path: Path) -> LayoutImage:
    return small.layout(tmp_path, {"a": b"a"}, ref="site/app:1")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.delenv("COSIGN_PASSWORD", raising=False)
    return generate(tmp_path / "keys")


def test_the_format_is_cosigns(image: LayoutImage, keys: tuple[Path, Path]) -> None:
    digest = sign(image, keys[0], annotations={"commit": "abc"})
    layout = Layout(image.root)
    tag = f"sha256-{image.digest.removeprefix('sha256:')}.sig"
    entry = layout.tagged(tag)
    assert entry is not None and entry.digest == digest
    (layer,) = layout.manifest(digest)["layers"]
    assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
    payload = layout.read(layer["digest"])
    assert json.loads(payload) == {
        "critical": {
            "identity": {"docker-reference": "site/app"},
            "image": {"docker-manifest-digest": image.digest},
            "type": "cosign container image signature",
        },
        "optional": {"commit": "abc"},
    }
    public = serialization.load_pem_public_key(keys[1].read_bytes())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    signature = base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"])
    public.verify(signature, payload, ec.ECDSA(hashes.SHA256()))
    config = json.loads(layout.read(layout.manifest(digest)["config"]["digest"]))
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]


def test_it_holds_and_says_what_was_signed(image: LayoutImage, keys: tuple[Path, Path]) -> None:
    sign(image, keys[0], reference="registry.site/team/app", annotations={"commit": "abc"})
    held = verify(image.root, keys[1])
    assert (held.digest, held.reference, held.annotations) == (
        image.digest,
        "registry.site/team/app",
        {"commit": "abc"},
    )
    assert verify(image.root, keys[1], reference="registry.site/team/app").digest == image.digest
    with pytest.raises(SignatureError, match=r"it signs the image as 'registry.site/team/app', not as 'other'"):
        verify(image.root, keys[1], reference="other")


def test_signing_again_changes_nothing(image: LayoutImage, keys: tuple[Path, Path]) -> None:
    first = sign(image, keys[0])
    index = (image.root / "index.json").read_bytes()
    assert sign(open_image(image.root), keys[0]) == first
    assert (image.root / "index.json").read_bytes() == index
    assert len(Layout(image.root).images) == 1


def test_two_signers_stand_beside_each_other(image: LayoutImage, keys: tuple[Path, Path], tmp_path: Path) -> None:
    other = generate(tmp_path / "other")
    sign(image, keys[0])
    sign(open_image(image.root), other[0])
    assert verify(image.root, keys[1]) == verify(image.root, other[1])


def test_an_image_without_a_signature(image: LayoutImage, keys: tuple[Path, Path]) -> None:
    with pytest.raises(UnsignedError, match="is not signed: there is no sha256-"):
        verify(image.root, keys[1])


def test_another_key(image: LayoutImage, keys: tuple[Path, Path], tmp_path: Path) -> None:
    sign(image, keys[0])
    other = generate(tmp_path / "other")[1]
    with pytest.raises(SignatureError, match="it was made with another key, or for another payload") as caught:
        verify(image.root, other)
    assert str(other) in str(caught.value) and "do not run it" in str(caught.value)


def stored(image: LayoutImage) -> tuple[Layout, dict[str, object]]:
    layout = Layout(image.root)
    entry = layout.tagged(signature_tag(image.digest))
    assert entry is not None
    return layout, layout.manifest(entry.digest)


def test_a_payload_that_was_changed_in_place(image: LayoutImage, keys: tuple[Path, Path]) -> None:
    sign(image, keys[0])
    layout, manifest = stored(image)
    path = layout.path(manifest["layers"][0]["digest"])  # type: ignore[index]
    path.write_bytes(path.read_bytes().replace(b"site/app", b"site/bad"))
    with pytest.raises(SignatureError, match="the payload was changed after it was stored"):
        verify(image.root, keys[1])
    path.unlink()
    with pytest.raises(SignatureError, match="the payload is missing"):
        verify(image.root, keys[1])


def test_a_payload_that_was_changed_and_stored_properly(image: LayoutImage, keys: tuple[Path, Path]) -> None:
    sign(image, keys[0])
    layout, manifest = stored(image)
    (layer,) = manifest["layers"]  # type: ignore[misc]
    payload = layout.read(layer["digest"]).replace(b"site/app", b"site/bad")
    layer |= {"digest": layout.put(payload), "size": len(payload)}
    layout.add_manifest(canonical_json(manifest), ref=signature_tag(image.digest))
    with pytest.raises(SignatureError, match="another key, or for another payload"):
        verify(image.root, keys[1])


def test_a_good_signature_of_another_image(image: LayoutImage, keys: tuple[Path, Path], tmp_path: Path) -> None:
    other = small.layout(tmp_path / "other", {"b": b"b"}, ref="site/app:2")
    sign(other, keys[0])
    layout, manifest = stored(other)
    for blob in (manifest["config"], *manifest["layers"]):  # type: ignore[misc]
        image.layout.put(layout.read(blob["digest"]))  # type: ignore[index]
    image.layout.add_manifest(canonical_json(manifest), ref=signature_tag(image.digest))
    with pytest.raises(SignatureError, match=r"it signs another image, sha256:.*: it was copied from there"):
        verify(image.root, keys[1])


@pytest.mark.parametrize(
    ("value", "words"), [("", "is missing"), ("not base64!", "is not base64"), ("AAAA", "another key")]
)
def test_an_annotation_that_is_no_signature(
    image: LayoutImage, keys: tuple[Path, Path], value: str, words: str
) -> None:
    sign(image, keys[0])
    layout, manifest = stored(image)
    manifest["layers"][0]["annotations"]["dev.cosignproject.cosign/signature"] = value  # type: ignore[index]
    layout.add_manifest(canonical_json(manifest), ref=signature_tag(image.digest))
    with pytest.raises(SignatureError, match=words):
        verify(image.root, keys[1])


def test_an_image_that_was_changed_after_it_was_signed(keys: tuple[Path, Path], tmp_path: Path) -> None:
    sign(small.layout(tmp_path, {"a": b"a"}, ref="site/app:1"), keys[0])
    changed = small.layout(tmp_path / "2", {"a": b"changed"}, ref="site/app:1")
    with pytest.raises(UnsignedError):
        verify(changed.root, keys[1])


def test_keys_of_other_kinds(image: LayoutImage, keys: tuple[Path, Path], tmp_path: Path) -> None:
    def written(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    rsa_key = rsa.generate_private_key(65537, 2048)
    with pytest.raises(InputError, match=r"is no ECDSA key of P-256"):
        sign(image, written("rsa", rsa_key.private_bytes(*pem)))
    with pytest.raises(InputError, match=r"is no ECDSA key of P-256"):
        sign(image, written("p384", ec.generate_private_key(ec.SECP384R1()).private_bytes(*pem)))
    with pytest.raises(InputError, match="encrypted in cosign's own way"):
        sign(image, written("own", b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE " + b"KEY-----\nAAAA\n"))
    with pytest.raises(InputError, match="is no private key in PEM"):
        sign(image, written("text", b"hello"))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        sign(image, tmp_path / "none")
    sign(image, keys[0])
    with pytest.raises(InputError, match="is a private key; checking takes the public one"):
        verify(image.root, keys[0])
    with pytest.raises(InputError, match="is no public key in PEM"):
        verify(image.root, written("text2", b"hello"))


def test_an_encrypted_key(image: LayoutImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "right")
    private, public = generate(tmp_path / "keys")
    assert private.stat().st_mode & 0o777 == 0o600 and b"ENCRYPTED" in private.read_bytes()
    sign(image, private)
    assert verify(image.root, public).digest == image.digest
    monkeypatch.setenv("COSIGN_PASSWORD", "wrong")
    with pytest.raises(InputError, match="COSIGN_PASSWORD does not open it"):
        sign(image, private)
    monkeypatch.delenv("COSIGN_PASSWORD")
    with pytest.raises(InputError, match="is encrypted"):
        sign(image, private)


def test_a_key_is_never_overwritten(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    before = keys[0].read_bytes()
    with pytest.raises(InputError, match="is there already"):
        generate(tmp_path / "keys")
    assert keys[0].read_bytes() == before

"""A registry filled from a bundle, and images taken from one by digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from myriad.stack.build import write_bundle
from myriad.stack.bundle import Blob, Bundle, FileEntry, ImageEntry, Manifest, Origin
from myriad.stack.fetch import ChecksumError, Fetcher, NotReachableError, VanishedError
from myriad.stack.lock import Lock
from myriad.stack.pin import find_pins
from myriad.stack.pull import Puller
from myriad.stack.push import PushError, files_tag, push_bundle
from myriad.stack.settings import Mirrors, Settings
from myriad.stack.store import Store

from .registry import MemoryRegistry

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


@pytest.fixture
def registry() -> Iterator[MemoryRegistry]:
    running = MemoryRegistry()
    yield running
    running.close()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _image(store: Store, ref: str, layers: list[bytes]) -> ImageEntry:
    """A made-up image in the store."""
    config = json.dumps({"ref": ref}).encode()
    parts = [
        Blob(sha256=store.put_bytes(config), size=len(config), media_type="application/vnd.oci.image.config.v1+json")
    ]
    for layer in layers:
        media_type = "application/vnd.oci.image.layer.v1.tar+zstd"
        parts.append(Blob(sha256=store.put_bytes(layer), size=len(layer), media_type=media_type))
    described = [{"digest": f"sha256:{p.sha256}", "size": p.size, "mediaType": p.media_type} for p in parts]
    body = json.dumps({"mediaType": _MANIFEST, "config": described[0], "layers": described[1:]}).encode()
    return ImageEntry(
        ref=ref,
        component="tool",
        version="1",
        digest=f"sha256:{store.put_bytes(body)}",
        media_type=_MANIFEST,
        size=len(body),
        blobs=parts,
        origin=Origin(source="image", holds=["tool"]),
    )


def _bundle(store: Store, out: Path, *, tool: bytes = b"program") -> Bundle:
    entry = FileEntry(
        name="tool",
        component="tool",
        version="1",
        kind="binary",
        sha256=store.put_bytes(tool),
        size=len(tool),
        origin=Origin(source="local", folder="x"),
    )
    shared = b"shared base" * 1000
    images = [_image(store, "one:v1", [shared, b"one"]), _image(store, "deep/two:v2", [shared, b"two"])]
    manifest = Manifest(
        myriad="0", arch="amd64", lock_sha256="0" * 64, versions={"tool": "1"}, files=[entry], images=images
    )
    return write_bundle(manifest, out, store)


def test_a_push_sends_everything_and_a_second_one_nothing(
    registry: MemoryRegistry, store: Store, tmp_path: Path
) -> None:
    bundle = _bundle(store, tmp_path / "bundle")
    result = push_bundle(bundle.directory, registry.url)
    assert result.sent == ["tool", "one:v1", "deep/two:v2", f"artifacts:{files_tag(bundle)}"]
    assert result.present == 0
    assert registry.blobs["artifacts", f"sha256:{_sha(b'program')}"] == b"program"
    assert f"sha256:{_sha(registry.manifests['deep/two', 'v2'][0])}" == bundle.image("deep/two").digest
    uploads = len(registry.uploads)
    again = push_bundle(bundle.directory, registry.url)
    assert (again.sent, again.sent_bytes, again.present) == ([], 0, 3)
    assert len(registry.uploads) == uploads


def test_the_files_are_named_by_a_manifest_so_that_garbage_collection_keeps_them(
    registry: MemoryRegistry, store: Store, tmp_path: Path
) -> None:
    bundle = _bundle(store, tmp_path / "bundle")
    push_bundle(bundle.directory, registry.url)
    body, media_type = registry.manifests["artifacts", files_tag(bundle)]
    (layer,) = json.loads(body)["layers"]
    assert media_type == _MANIFEST
    assert layer["digest"] == f"sha256:{bundle.file('tool').sha256}"
    assert layer["annotations"]["org.opencontainers.image.title"] == "tool"


def test_a_dry_run_tells_and_sends_nothing(registry: MemoryRegistry, store: Store, tmp_path: Path) -> None:
    bundle = _bundle(store, tmp_path / "bundle")
    result = push_bundle(bundle.directory, registry.url, dry_run=True)
    assert result.sent == push_bundle(bundle.directory, registry.url).sent
    assert len(registry.uploads) == len(set(registry.uploads)) + 1  # the shared layer, once for each repository


def test_only_what_is_missing_is_sent(registry: MemoryRegistry, store: Store, tmp_path: Path) -> None:
    bundle = _bundle(store, tmp_path / "bundle")
    push_bundle(bundle.directory, registry.url)
    del registry.blobs["artifacts", f"sha256:{_sha(b'program')}"]
    del registry.manifests["one", "v1"]
    sent: list[tuple[str, int]] = []
    result = push_bundle(bundle.directory, registry.url, on_sent=lambda name, size: sent.append((name, size)))
    assert result.sent == ["tool", "one:v1"] and result.present == 1
    assert sent == [("tool", len(b"program"))]


def test_a_moved_tag_is_set_right(registry: MemoryRegistry, store: Store, tmp_path: Path) -> None:
    bundle = _bundle(store, tmp_path / "bundle")
    push_bundle(bundle.directory, registry.url)
    registry.manifests["one", "v1"] = (b"{}", _MANIFEST)
    assert push_bundle(bundle.directory, registry.url).sent == ["one:v1"]
    assert _sha(registry.manifests["one", "v1"][0]) == bundle.image("one").digest.removeprefix("sha256:")


def test_a_new_bundle_gets_a_tag_of_its_own(registry: MemoryRegistry, store: Store, tmp_path: Path) -> None:
    first = _bundle(store, tmp_path / "one")
    second = _bundle(store, tmp_path / "two", tool=b"newer program")
    push_bundle(first.directory, registry.url)
    result = push_bundle(second.directory, registry.url)
    assert result.sent == ["tool", f"artifacts:{files_tag(second)}"]
    assert {("artifacts", files_tag(first)), ("artifacts", files_tag(second))} <= set(registry.manifests)


def test_a_passing_failure_is_tried_again(registry: MemoryRegistry, store: Store, tmp_path: Path) -> None:
    registry.fail_uploads = 2
    push_bundle(_bundle(store, tmp_path / "bundle").directory, registry.url)
    assert ("one", "v1") in registry.manifests


def test_a_registry_that_refuses_is_told(registry: MemoryRegistry, store: Store, tmp_path: Path) -> None:
    bundle = _bundle(store, tmp_path / "bundle")
    path = bundle.file_path("tool")
    path.unlink()
    path.write_bytes(b"porgram")
    with pytest.raises(PushError, match="400 digest invalid"):
        push_bundle(bundle.directory, registry.url)


def test_a_bundle_that_lacks_a_blob_is_told(registry: MemoryRegistry, store: Store, tmp_path: Path) -> None:
    bundle = _bundle(store, tmp_path / "bundle")
    bundle.file_path("tool").unlink()
    with pytest.raises(PushError, match="the bundle lacks a blob of tool"):
        push_bundle(bundle.directory, registry.url)


def test_a_registry_that_does_not_answer(store: Store, tmp_path: Path, free_port_url: str) -> None:
    bundle = _bundle(store, tmp_path / "bundle")
    with pytest.raises(PushError, match="is the registry running"):
        push_bundle(bundle.directory, free_port_url.removeprefix("http://"))
    predicted = push_bundle(bundle.directory, free_port_url, dry_run=True)
    assert predicted.sent == ["tool", "one:v1", "deep/two:v2", f"artifacts:{files_tag(bundle)}"]
    assert not predicted.answered


def _mirrored(settings: Settings, registry: MemoryRegistry) -> Settings:
    return replace(settings, mirrors=Mirrors(registries={"docker.io": registry.url}))


def _publish(registry: MemoryRegistry, tmp_path: Path, *, index: bool) -> str:
    """An image `org/vc:v1` in the registry, behind an index or not. Returns the digest of its manifest."""
    store = Store(tmp_path / "publisher")
    image = _image(store, "org/vc:v1", [b"layer"])
    for blob in image.blobs:
        registry.blobs["org/vc", f"sha256:{blob.sha256}"] = store.read_bytes(blob.sha256)
    body = store.read_bytes(image.digest)
    registry.manifests["org/vc", "v1"] = registry.manifests["org/vc", image.digest] = (body, _MANIFEST)
    if index:
        manifests = [
            {"digest": "sha256:" + "0" * 64, "size": 1, "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": image.digest, "size": len(body), "platform": {"os": "linux", "architecture": "amd64"}},
        ]
        registry.manifests["org/vc", "v1"] = (json.dumps({"manifests": manifests}).encode(), _INDEX)
    return image.digest.removeprefix("sha256:")


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("token", ["", "secret"])
def test_a_tag_is_resolved_once_and_then_pulled_by_digest(
    registry: MemoryRegistry, store: Store, settings: Settings, tmp_path: Path, index: bool, token: str
) -> None:
    digest = _publish(registry, tmp_path, index=index)
    registry.token = token
    with Puller(store=store, settings=_mirrored(settings, registry)) as puller:
        assert puller.resolve("docker.io/org/vc:v1", arch="amd64")[0] == digest
        entry = puller.pull("docker.io/org/vc:v1", sha256=digest, component="v", version="1", as_ref="vc:v1")
        registry.manifests.clear()
        registry.blobs.clear()
        again = puller.pull("docker.io/org/vc:v1", sha256=digest, component="v", version="1", as_ref="vc:v1")
    assert entry == again
    assert entry.ref == "vc:v1" and entry.origin.ref == "docker.io/org/vc:v1"
    assert all(store.check(blob.sha256) for blob in entry.blobs)
    assert len(registry.scopes) == (1 if token else 0)


def test_a_changed_blob_or_manifest_is_refused(
    registry: MemoryRegistry, store: Store, settings: Settings, tmp_path: Path
) -> None:
    digest = _publish(registry, tmp_path, index=False)
    layer = f"sha256:{_sha(b'layer')}"
    registry.blobs["org/vc", layer] = b"evil!"
    with Puller(store=store, settings=_mirrored(settings, registry)) as puller:
        with pytest.raises(ChecksumError, match="the blob has sha256"):
            puller.pull("docker.io/org/vc:v1", sha256=digest, component="v", version="1", as_ref="vc:v1")
        registry.manifests["org/vc", "sha256:" + "1" * 64] = (b"{}", _MANIFEST)
        with pytest.raises(ChecksumError, match="the manifest has sha256"):
            puller.pull("docker.io/org/vc:v1", sha256="1" * 64, component="v", version="1", as_ref="vc:v1")


def test_an_image_that_is_gone_or_of_another_architecture(
    registry: MemoryRegistry, store: Store, settings: Settings, tmp_path: Path
) -> None:
    _publish(registry, tmp_path, index=True)
    with Puller(store=store, settings=_mirrored(settings, registry)) as puller:
        with pytest.raises(VanishedError, match="does not have it"):
            puller.resolve("docker.io/org/vc:v2", arch="amd64")
        with pytest.raises(VanishedError, match="no manifest for linux/riscv64"):
            puller.resolve("docker.io/org/vc:v1", arch="riscv64")


def test_a_registry_that_cannot_be_reached(store: Store, settings: Settings, free_port_url: str) -> None:
    mirrored = replace(settings, mirrors=Mirrors(registries={"*": free_port_url}))
    with Puller(store=store, settings=mirrored) as puller, pytest.raises(NotReachableError, match="does not answer"):
        puller.resolve("docker.io/org/vc:v1", arch="amd64")


def test_lock_pin_resolves_images(registry: MemoryRegistry, store: Store, settings: Settings, tmp_path: Path) -> None:
    digest = _publish(registry, tmp_path, index=True)
    image = {"ref": "docker.io/org/vc:v{version}", "sha256": {"amd64": "open"}}
    component = {"version": "1", "upstream_images": {"vc": image}}
    lock = Lock.model_validate({"schema": 1, "go": "1", "components": {"v": component}})
    mirrored = _mirrored(settings, registry)
    with Puller(store=store, settings=mirrored) as puller, Fetcher(store=store, settings=mirrored) as fetcher:
        (pin,) = find_pins(lock, "v", arch="amd64", fetcher=fetcher, puller=puller)
    assert (pin.sha256, pin.url) == (digest, "docker.io/org/vc:v1")
    assert pin.path == ("components", "v", "upstream_images", "vc", "sha256", "amd64")

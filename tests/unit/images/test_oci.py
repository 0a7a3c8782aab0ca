"""Blobs, manifests, layouts and archives follow the formats and name the right bytes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from myriad.errors import MyriadError
from myriad.images.layer import file_from_bytes
from myriad.images.oci import (
    MEDIA_TYPE_LAYER_GZIP,
    MEDIA_TYPE_LAYER_ZSTD,
    BlobStore,
    BuiltImage,
    Compression,
    ImageConfig,
    export_docker_archive,
    export_layout,
    open_layer,
    read_layer_paths,
    write_image,
    write_layer,
)


def image_in(store: BlobStore, compression: Compression = "zstd") -> BuiltImage:
    lower = write_layer(store, [file_from_bytes("/a", b"a" * 5000)], comment="lower", compression=compression)
    upper = write_layer(store, [file_from_bytes("/b", b"b")], comment="upper", compression=compression)
    config = ImageConfig(entrypoint=["/a"], env={"B": "2", "A": "1"}, user="65532", labels={"title": "t"})
    return write_image(store, ref="x/y:1", layers=[lower, upper], config=config)


@pytest.mark.parametrize(
    ("compression", "media_type"), [("zstd", MEDIA_TYPE_LAYER_ZSTD), ("gzip", MEDIA_TYPE_LAYER_GZIP)]
)
def test_two_builds_in_different_places_are_the_same_image(
    tmp_path: Path, compression: Compression, media_type: str
) -> None:
    first, second = (image_in(BlobStore(tmp_path / name), compression) for name in ("one", "two"))
    assert first.manifest_digest == second.manifest_digest
    assert first.blobs[first.layer_digests[0]].media_type == media_type
    for digest, blob in first.blobs.items():
        data = blob.path.read_bytes()
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
        assert len(data) == blob.size
        assert data == second.blobs[digest].path.read_bytes()


def test_manifest_and_config_name_the_layers_from_low_to_high(tmp_path: Path) -> None:
    image = image_in(BlobStore(tmp_path))
    manifest = json.loads(image.blobs[image.manifest_digest].path.read_bytes())
    config = json.loads(image.blobs[image.config_digest].path.read_bytes())
    assert [layer["digest"] for layer in manifest["layers"]] == list(image.layer_digests)
    assert manifest["config"]["digest"] == image.config_digest
    for digest, diff_id in zip(image.layer_digests, config["rootfs"]["diff_ids"], strict=True):
        with open_layer(image.blobs[digest]) as stream:
            assert f"sha256:{hashlib.sha256(stream.read()).hexdigest()}" == diff_id
    assert config["config"] == {"Entrypoint": ["/a"], "Env": ["A=1", "B=2"], "User": "65532", "Labels": {"title": "t"}}
    assert len(config["history"]) == 2
    assert image.size == sum(blob.size for blob in image.blobs.values())


def test_layout_holds_every_blob_under_its_digest_and_shares_layers(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store")
    image = image_in(store)
    export_layout([image, image], tmp_path / "out")
    index = json.loads((tmp_path / "out" / "index.json").read_bytes())
    assert index["manifests"][0]["annotations"] == {"org.opencontainers.image.ref.name": "x/y:1"}
    assert json.loads((tmp_path / "out" / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    names = {path.name for path in (tmp_path / "out" / "blobs" / "sha256").iterdir()}
    assert names == {digest.removeprefix("sha256:") for digest in image.blobs}


def test_docker_archive_holds_plain_layers(tmp_path: Path) -> None:
    image = image_in(BlobStore(tmp_path / "store"))
    export_docker_archive(image, tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as tar:

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        (manifest,) = json.loads(read("manifest.json"))
        config = json.loads(read(manifest["Config"]))
        assert manifest["RepoTags"] == ["x/y:1"]
        for name, diff_id in zip(manifest["Layers"], config["rootfs"]["diff_ids"], strict=True):
            assert f"sha256:{hashlib.sha256(read(name)).hexdigest()}" == diff_id


def test_layer_paths(tmp_path: Path) -> None:
    image = image_in(BlobStore(tmp_path))
    assert read_layer_paths(image.blobs[image.layer_digests[1]]) == ["b"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with pytest.raises(RuntimeError), store.writer() as writer:
        writer.write(b"half")
        raise RuntimeError
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_no_digest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MyriadError, match="not a digest"):
        BlobStore(tmp_path).path("sha256:short")


def test_gzip_layers_carry_no_time(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    layer = write_layer(store, [file_from_bytes("/a", b"a")], compression="gzip")
    header = io.BytesIO(store.path(layer.digest).read_bytes()).read(10)
    assert header[3] == 0, "no name in the header"
    assert header[4:8] == b"\0\0\0\0", "no time in the header"

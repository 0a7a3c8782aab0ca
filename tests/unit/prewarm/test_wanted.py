"""Which images a node wants and what they weigh; registries, racks and waves as the playbook gets them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.myriad.gpu.plugins.filter import prewarm as filters

from myriad.errors import InputError, MyriadError
from myriad.images.oci import sha256_digest
from myriad.prewarm import sizes
from myriad.prewarm.wanted import wanted

HELD = {"myriad/gang-check": {"ref": "myriad/gang-check:0.1.0", "digest": "sha256:" + "1" * 64}}


def layer_of(files: dict[str, int]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, size in files.items():
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(os.urandom(size)))
    return buffer.getvalue()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with one image of two layers, one of them zstd."""
    import zstandard

    blobs: dict[str, tuple[bytes, str]] = {}
    plain = [layer_of({"a": 1, "b": 4096, "c": 4097}), layer_of({"d": 10_000})]
    stored = [(plain[0], "application/vnd.oci.image.layer.v1.tar")]
    stored.append((zstandard.ZstdCompressor().compress(plain[1]), "application/vnd.oci.image.layer.v1.tar+zstd"))
    layers = []
    for data, kind in stored:
        blobs[sha256_digest(data)] = (data, kind)
        layers.append({"digest": sha256_digest(data), "size": len(data), "mediaType": kind})
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [sha256_digest(data) for data in plain]}}).encode()
    blobs[sha256_digest(config)] = (config, "application/vnd.oci.image.config.v1+json")
    manifest = json.dumps({"config": {"digest": sha256_digest(config)}, "layers": layers}).encode()
    blobs[sha256_digest(manifest)] = (manifest, "application/vnd.oci.image.manifest.v1+json")
    folder = tmp_path / "bundle"
    for digest, (data, _) in blobs.items():
        path = folder / "sha256" / digest[7:9] / digest[7:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "bundle.yml").write_text(
        yaml.safe_dump(
            {
                "schema": 1, "myriad": "0.1.0", "arch": "amd64", "lock_sha256": "0" * 64, "versions": {}, "files": [],
                "images": [
                    {
                        "ref": "myriad/gang-check:0.1.0", "component": "gang-check", "version": "0.1.0",
                        "digest": sha256_digest(manifest), "media_type": "application/vnd.oci.image.manifest.v1+json",
                        "size": sum(len(data) for data, _ in blobs.values()), "origin": {"source": "image"},
                        "blobs": [
                            {"sha256": digest[7:], "size": len(data), "media_type": kind}
                            for digest, (data, kind) in blobs.items()
                        ],
                    }
                ],
            }
        )
    )  # fmt: skip
    return folder


def test_unpacked_sizes_are_those_of_a_disk_and_read_once(bundle: Path, tmp_path: Path) -> None:
    found = sizes.in_bundle(bundle, ["myriad/gang-check:0.1.0"], cache=tmp_path / "cache")["myriad/gang-check:0.1.0"]
    # A directory, and files of 1, 4096 and 4097 bytes: 1 + 1 + 1 + 2 blocks. Then a directory and 10,000 bytes: 1 + 3.
    assert [layer["unpacked"] for layer in found["layers"]] == [5 * 4096, 4 * 4096]
    assert not any(layer["estimated"] for layer in found["layers"])
    kept = json.loads((tmp_path / "cache" / "unpacked.json").read_text())
    (tmp_path / "cache" / "unpacked.json").write_text(json.dumps(dict.fromkeys(kept, 7)))
    again = sizes.in_bundle(bundle, ["myriad/gang-check:0.1.0"], cache=tmp_path / "cache")
    assert [layer["unpacked"] for layer in again["myriad/gang-check:0.1.0"]["layers"]] == [7, 7]


def test_a_chain_names_a_layer_with_all_below_it() -> None:
    manifest = json.dumps({"layers": [{"digest": f"sha256:{k}", "size": 10} for k in "ab"]}).encode()
    config = json.dumps({"rootfs": {"diff_ids": ["sha256:one", "sha256:two"]}}).encode()
    first, second = sizes.layers_of(manifest, config, {})
    assert first["chain"] == "sha256:one"
    assert second["chain"] == sha256_digest(b"sha256:one sha256:two")
    assert second["estimated"] is True and second["unpacked"] == 30


def test_a_layer_may_tell_its_own_size() -> None:
    told = {"digest": "sha256:a", "size": 10, "annotations": {sizes.ANNOTATION: "12345"}}
    (layer,) = sizes.layers_of(
        json.dumps({"layers": [told]}).encode(), json.dumps({"rootfs": {"diff_ids": ["sha256:x"]}}).encode(), {}
    )
    assert (layer["unpacked"], layer["estimated"]) == (12345, False)


def test_a_manifest_and_a_configuration_of_two_images_are_refused() -> None:
    with pytest.raises(MyriadError, match="do not belong together"):
        sizes.layers_of(b'{"layers": []}', b'{"rootfs": {"diff_ids": ["sha256:x"]}}', {})


class TestWanted:
    def ask(self, bundle: Path, warm: list[dict[str, Any]], groups: list[str], **more: Any) -> list[dict[str, Any]]:
        return wanted(HELD, {"warm": warm}, groups, registry="r.internal", bundle=bundle, **more)

    def test_pools_choose(self, bundle: Path) -> None:
        held = {"myriad/gang-check": {**HELD["myriad/gang-check"]}}
        entry = {"image": "gang-check", "pools": ["h100"]}
        digest = yaml.safe_load((bundle / "bundle.yml").read_text())["images"][0]["digest"]
        held["myriad/gang-check"]["digest"] = digest
        found = wanted(held, {"warm": [entry]}, ["gpu_nodes", "pool_h100"], registry="r.internal", bundle=bundle)
        assert [(one["ref"], one["digest"], one["tags"]) for one in found] == [
            ("r.internal/myriad/gang-check", digest, ["0.1.0"])
        ]
        assert wanted(held, {"warm": [entry]}, ["gpu_nodes", "pool_v100"], registry="r", bundle=bundle) == []

    def test_an_image_outside_the_bundle_needs_its_digest(self, bundle: Path) -> None:
        with pytest.raises(InputError, match="add `digest: sha256"):
            self.ask(bundle, [{"image": "vision/train"}], ["gpu_nodes"])

    def test_a_name_that_nobody_described_is_refused_with_a_guess(self, bundle: Path) -> None:
        with pytest.raises(InputError, match='did you mean "gang-check"'):
            self.ask(bundle, [{"image": "gang-check"}], ["gpu_nodes"], only=["gang-chek"])


class TestFilters:
    def test_the_nearest_registry_first(self) -> None:
        urls = ["http://a:5000", "http://b:5000"]
        found = filters.nearest_registries(urls, "gpu1", "h1/b2/r1", ["h1/b1", "h1/b2"])
        assert found == ["http://b:5000", "http://a:5000"]
        assert set(filters.nearest_registries(urls, "gpu1", None, [])) == set(urls)

    def test_slots_come_from_the_description(self) -> None:
        described = {"prewarm": {"rack_gbit": 5, "registry_gbit": 50}}
        assert filters.prewarm_registries(["http://a"], described) == [{"url": "http://a", "nodes": 20}]
        assert filters.prewarm_rack("h/b/r", described) == {"name": "h/b/r", "nodes": 2}
        assert filters.prewarm_rack("", described) == {}

    def test_a_wrong_limit_is_said_where_it_stands(self) -> None:
        with pytest.raises(AnsibleFilterError, match=r"myriad_images\.prewarm"):
            filters.prewarm_rack("h/b/r", {"prewarm": {"rack_gbit": "fast"}})

    def test_serial_of_a_play(self) -> None:
        assert filters.prewarm_waves([f"g{k}" for k in range(125)]) == [1, 1, 11, 112]
        assert filters.prewarm_waves([]) == [1]

"""The registry client against the registry program that sites run."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from myriad.errors import InputError
from myriad.images.layer import file_from_bytes
from myriad.images.oci import (
    MEDIA_TYPE_CONFIG,
    MEDIA_TYPE_MANIFEST,
    BlobStore,
    ImageConfig,
    Layout,
    canonical_json,
    export_layout,
    sha256_digest,
    write_image,
    write_layer,
)
from myriad.images.registry import (
    Registry,
    RegistryDeniedError,
    RegistryError,
    RegistryMissingError,
    RegistryUnreachableError,
    stored_credentials,
)

from .conftest import Served


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Two layers and an attached document."""
    store = BlobStore(tmp_path / "store")
    layers = [
        write_layer(store, [file_from_bytes("a", b"a" * 3_000_000)], comment="a"),
        write_layer(store, [file_from_bytes("b", b"b")], comment="b"),
    ]
    image = write_image(store, ref="team/tool:1", layers=layers, config=ImageConfig(entrypoint=["/a"]))
    export_layout([image], tmp_path / "out")
    layout = Layout(tmp_path / "out")
    text = layout.put(b"a list of parts")
    empty = layout.put(b"{}")
    layout.add_manifest(
        canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": MEDIA_TYPE_MANIFEST,
                "artifactType": "application/vnd.test.list",
                "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": empty, "size": 2},
                "layers": [{"mediaType": "text/plain", "digest": text, "size": 15}],
                "subject": {
                    "mediaType": MEDIA_TYPE_MANIFEST,
                    "digest": image.manifest_digest,
                    "size": image.blobs[image.manifest_digest].size,
                },
            }
        )
    )
    return layout


def test_push_sends_what_is_missing_once(serve: Callable[..., Served], layout: Layout) -> None:
    with Registry(serve().url) as registry:
        first = registry.push_layout(layout, "vision/tool", "1.0")
        again = registry.push_layout(layout, "vision/tool", "1.0")
        other = registry.push_layout(layout, "speech/tool", mount_from="vision/tool")

        assert len(first.sent) == 5 and first.present == 0
        assert not again.sent and again.present == 5
        assert not other.sent and len(other.mounted) == 5
        assert first.documents == ["application/vnd.test.list"]
        assert registry.digest_of("vision/tool", "1.0") == first.digest
        assert registry.digest_of("vision/tool", "2.0") is None
        # By digest alone, without a tag.
        assert registry.manifest("speech/tool", first.digest).digest == first.digest


def test_pull_gives_the_same_bytes(serve: Callable[..., Served], layout: Layout, tmp_path: Path) -> None:
    with Registry(serve().url) as registry:
        digest = registry.push_layout(layout, "vision/tool", "1").digest
        store = BlobStore(tmp_path / "pulled")
        manifest = registry.image_manifest("vision/tool", "1")
        for part in (manifest.value["config"], *manifest.value["layers"]):
            assert registry.fetch_blob("vision/tool", part["digest"], store)
            assert not registry.fetch_blob("vision/tool", part["digest"], store)
            assert store.path(part["digest"]).read_bytes() == layout.read(part["digest"])
        assert manifest.value["config"]["mediaType"] == MEDIA_TYPE_CONFIG
        attached = registry.referrers("vision/tool", digest)
        assert [one.artifact_type for one in attached] == ["application/vnd.test.list"]
        document = registry.manifest("vision/tool", attached[0].digest).value
        assert b"".join(registry.blob("vision/tool", document["layers"][0]["digest"])) == b"a list of parts"


def test_tls_and_credentials(serve: Callable[..., Served], layout: Layout) -> None:
    served = serve(tls=True, credentials=True)
    with (
        Registry(served.url) as untrusted,
        pytest.raises(RegistryUnreachableError, match="certificate is not trusted here: give the site's CA with --ca"),
    ):
        untrusted.ping()
    with Registry(served.url, ca=served.ca) as nobody, pytest.raises(RegistryDeniedError, match="no credentials"):
        nobody.push_layout(layout, "vision/tool", "1")
    with (
        Registry(served.url, ca=served.ca, credentials=("ci", "wrong")) as wrong,
        pytest.raises(RegistryDeniedError, match="by user ci"),
    ):
        wrong.ping()
    with Registry(served.url, ca=served.ca, credentials=(served.user, served.password)) as registry:
        pushed = registry.push_layout(layout, "vision/tool", "1")
        assert registry.digest_of("vision/tool", "1") == pushed.digest


def test_errors_say_what_is_wrong(serve: Callable[..., Served], layout: Layout, tmp_path: Path) -> None:
    served = serve()
    with Registry(served.url) as registry:
        with pytest.raises(RegistryMissingError, match="does not have it"):
            registry.manifest("vision/none", "1")
        with pytest.raises(RegistryMissingError):
            list(registry.blob("vision/none", sha256_digest(b"nothing")))
        with pytest.raises(InputError, match="no name of a repository"):
            registry.push_layout(layout, "Vision/Tool", "1")
        with pytest.raises(InputError, match="no tag"):
            registry.push_layout(layout, "vision/tool", "a b")
        next(path for path in (layout.root / "blobs/sha256").iterdir() if path.stat().st_size < 20).unlink()
        with pytest.raises(RegistryError, match="lacks 1 of its blobs"):
            registry.push_layout(layout, "vision/tool", "1")
    with Registry("http://127.0.0.1:9") as silent, pytest.raises(RegistryUnreachableError, match="does not answer"):
        silent.ping()
    with (
        Registry(served.url.replace("http", "https")) as tls,
        pytest.raises(RegistryUnreachableError, match="plain HTTP"),
    ):
        tls.ping()
    with pytest.raises(InputError, match="is no OCI image layout"):
        Layout(tmp_path)


def test_credentials_of_docker_login_are_found(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    auth = base64.b64encode(b"ci:a:b").decode()
    path.write_text(json.dumps({"auths": {"https://registry.site:5000": {"auth": auth}}}))
    environment = {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}
    assert stored_credentials("registry.site:5000", environment) == ("ci", "a:b")
    assert stored_credentials("other.site", environment) is None
    path.write_text(json.dumps({"credHelpers": {"registry.site:5000": "desktop"}}))
    with pytest.raises(InputError, match="credential helper"):
        stored_credentials("registry.site:5000", environment)
    path.write_text("[]")
    with pytest.raises(InputError, match="no configuration"):
        stored_credentials("registry.site:5000", environment)

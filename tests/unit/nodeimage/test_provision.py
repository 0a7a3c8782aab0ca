"""What the roles of a node image ask for is there without a description: an image belongs to no site."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from myriad.nodeimage.definition import load_node_image
from myriad.nodeimage.provision import HOST, Site, ansible_playbook, play, variables
from myriad.stack.bundle import MANIFEST, FileEntry, ImageEntry, Manifest, Origin, manifest_bytes
from myriad.stack.lock import load_lock

CLONE = Path(__file__).parents[3]
FOLDER = CLONE / "images" / "node-debian12"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle that names all that the lock does; no role looks into its files before it installs."""
    lock, origin, zeros = load_lock(), Origin(source="local"), "0" * 64
    files = [
        FileEntry(name=file, component=name, version=entry.version, kind=kind, sha256=zeros, size=1, origin=origin)
        for name, entry in lock.components.items()
        for file, kind in entry.artifacts.items()
    ]
    images = [
        ImageEntry(
            ref=f"{image}:{made.tag.format(version=entry.version)}", component=name, version=entry.version,
            digest=f"sha256:{zeros}", media_type="application/vnd.oci.image.manifest.v1+json", size=1, blobs=[],
            origin=origin,
        )
        for name, entry in lock.components.items()
        for image, made in entry.images.items()
    ]  # fmt: skip
    versions = {name: entry.version for name, entry in lock.components.items()}
    manifest = Manifest(myriad="0", arch="amd64", lock_sha256=zeros, versions=versions, files=files, images=images)
    (tmp_path / MANIFEST).write_bytes(manifest_bytes(manifest))
    return tmp_path


@pytest.mark.parametrize("name", ["provision", "configure"])
def test_every_argument_of_the_roles_has_a_value_without_a_site(name: str, bundle: Path, tmp_path: Path) -> None:
    image = load_node_image(FOLDER)
    local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    lines: list[str] = []

    result = play(
        FOLDER / f"{name}.yml",
        {"all": {"hosts": {HOST: local}}},
        variables(image, Site(bundle, "127.0.0.1:5000")),
        log=tmp_path / "roles.log",
        on_line=lines.append,
        # The checks of the roles' arguments have the tag `always`; nothing else has it, so nothing is touched.
        arguments=("--tags", "always"),
        env={"PATH": f"{Path(ansible_playbook()).parent}:{os.environ['PATH']}"},
    )

    assert {role for role in image.roles if any(f"{role}: check of the arguments" in line for line in lines)} == set(
        image.roles
    ), lines
    assert result is not None

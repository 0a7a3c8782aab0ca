"""A small bundle with everything that a bundle may hold: a file, an image, a package, a wheel, indexes, a key."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from myriad.stack import apt_repo
from myriad.stack.build import write_bundle
from myriad.stack.bundle import (
    AptRepository,
    Blob,
    Bundle,
    FileEntry,
    ImageEntry,
    Manifest,
    Origin,
    PackageEntry,
    ServedFile,
    WheelEntry,
)
from myriad.stack.store import Store

DATE = "Sat, 28 Nov 2026 02:53:00 GMT"
OCI = "application/vnd.oci.image.manifest.v1+json"
PROGRAM = bytes(range(256)) * 400
HAS_APT = all(shutil.which(program) for program in ("dpkg-deb", "apt-get", "gpg"))


def make_deb(folder: Path, name: str, version: str, *, depends: str = "") -> Path:
    """A real Debian package with one file."""
    root = folder / f"{name}-root"
    (root / "DEBIAN").mkdir(parents=True)
    fields = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\n"
    fields += f"Depends: {depends}\n" if depends else ""
    (root / "DEBIAN" / "control").write_text(fields + f"Description: {name} of a test\n more of it\n")
    (root / "usr" / "share" / name).mkdir(parents=True)
    (root / "usr" / "share" / name / "hello").write_text(f"{name} {version}\n")
    path = folder / f"{name}_{version.replace(':', '%3a')}_all.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", str(root), str(path)],
        check=True,
        capture_output=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},  # the same package each time
    )
    return path


def resolved(path: Path, url: str = "http://archive.example.org/x.deb") -> apt_repo.Resolved:
    """A package file as a resolver gives it."""
    stanza = subprocess.run(["dpkg-deb", "-f", str(path)], check=True, capture_output=True, text=True).stdout.strip()
    data = path.read_bytes()
    fields = apt_repo.parse_stanza(stanza)
    return apt_repo.Resolved(
        name=fields["Package"],
        version=fields["Version"],
        arch="all",
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        url=url,
        stanza=f"{stanza}\nFilename: pool/elsewhere.deb\nSize: 1\nSHA256: 00",
    )


def make_wheel(name: str, version: str) -> bytes:
    """A real wheel with one module."""
    buffer = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(buffer, "w") as wheel:
        for member, text in (
            (f"{name}.py", f"VERSION = {version!r}\n"),
            (f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
            (f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            (f"{info}/RECORD", ""),
        ):
            wheel.writestr(zipfile.ZipInfo(member), text)
    return buffer.getvalue()


def make_bundle(folder: Path, *, signing_home: Path | None = None) -> Bundle:
    """The bundle, in `folder/bundle`; its apt repository is signed where a home for the key is given."""
    store = Store(folder / "store")

    def served(path: str, data: bytes) -> ServedFile:
        return ServedFile(path=path, sha256=store.put_bytes(data), size=len(data))

    layer, config = b"layer of an image", b'{"architecture":"amd64"}'
    blobs = [
        Blob(sha256=store.put_bytes(data), size=len(data), media_type=kind)
        for data, kind in (
            (config, "application/vnd.oci.image.config.v1+json"),
            (layer, "application/vnd.oci.image.layer.v1.tar+zstd"),
        )
    ]
    image = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": OCI,
            "config": {"mediaType": blobs[0].media_type, "digest": f"sha256:{blobs[0].sha256}", "size": len(config)},
            "layers": [{"mediaType": blobs[1].media_type, "digest": f"sha256:{blobs[1].sha256}", "size": len(layer)}],
        }
    ).encode()
    packages: list[PackageEntry] = []
    files = [served("keys/vendor.asc", b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n")]
    apt = None
    if HAS_APT:
        (folder / "debs").mkdir(parents=True, exist_ok=True)
        debs = [
            make_deb(folder / "debs", "lead", "1:2.0-1", depends="follow (>= 1.0)"),
            make_deb(folder / "debs", "follow", "1.0-1"),
        ]
        found = [resolved(path) for path in debs]
        for path in debs:
            store.put_file(path)
        packages = [
            PackageEntry(
                name=item.name,
                version=item.version,
                arch=item.arch,
                distributions=["debian12"],
                sha256=item.sha256,
                size=item.size,
                url=item.url,
            )
            for item in found
        ]
        indexes = apt_repo.repository_files("bookworm", "amd64", found, date=DATE)
        files += [served(f"apt/{path}", data) for path, data in indexes.items()]
        fingerprint = key = ""
        if signing_home is not None:
            signer = apt_repo.Signer(signing_home)
            clear, detached = signer.sign(indexes["dists/bookworm/Release"], date=DATE)
            files.append(served("apt/dists/bookworm/InRelease", clear))
            files.append(served("apt/dists/bookworm/Release.gpg", detached))
            fingerprint, key = signer.fingerprint(), signer.public_key()
            signer.close()
        apt = AptRepository(
            suites={"debian12": "bookworm"}, wanted={"debian12": ["lead"]}, fingerprint=fingerprint, key=key
        )
    wheel = make_wheel("thing", "1.5")
    manifest = Manifest(
        myriad="0",
        arch="amd64",
        lock_sha256="0" * 64,
        versions={},
        files=[
            FileEntry(
                name="tool",
                component="toolbox",
                version="1.2",
                kind="binary",
                sha256=store.put_bytes(PROGRAM),
                size=len(PROGRAM),
                origin=Origin(source="local", folder="x"),
            )
        ],
        images=[
            ImageEntry(
                ref="team/app:v1",
                component="app",
                version="1",
                digest=f"sha256:{store.put_bytes(image)}",
                media_type=OCI,
                size=len(image),
                blobs=blobs,
                origin=Origin(source="image", holds=["tool"]),
            )
        ],
        packages=packages,
        wheels=[
            WheelEntry(
                name="thing",
                version="1.5",
                filename="thing-1.5-py3-none-any.whl",
                sha256=store.put_bytes(wheel),
                size=len(wheel),
                url="https://files.example.org/thing-1.5-py3-none-any.whl",
            )
        ],
        served=files,
        apt=apt,
    )
    return write_bundle(manifest, folder / "bundle", store)

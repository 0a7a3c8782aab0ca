"""Where an image came from: SLSA provenance v1 in an in-toto statement, the same bytes for the same build.

Format: https://slsa.dev/spec/v1.0/provenance, https://github.com/in-toto/attestation. It names the inputs by digest
(the base, the lock of the wheels, each wheel, the files of the image's folder), the builder with its version, and the
image that came out. It has no time of the build and no name of the building machine: two builds of the same inputs
are the same statement.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from myriad.errors import MyriadError
from myriad.images.definition import ExternalBase, ImageDefinition, OwnBase
from myriad.images.oci import canonical_json
from myriad.images.proof_layout import LayoutImage, attach, attached, hash_of
from myriad.images.proof_packages import Packages
from myriad.images.proof_types import Finding

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://myriad.dev/image-build/v1"
MEDIA_TYPE = "application/vnd.in-toto+json"

Json = dict[str, Any]


def statement(
    image: LayoutImage, folder: Path, definition: ImageDefinition, packages: Packages, *, version: str
) -> bytes:
    """The statement for an image that was built from a folder.

    Args:
        image: what came out.
        folder: of its image.yml.
        definition: what image.yml says.
        packages: what is inside, for the wheels' hashes.
        version: of Myriad.

    Raises:
        MyriadError: a file that image.yml names is missing.
    """
    lock = _lock(folder, definition)
    return canonical_json(
        {
            "_type": STATEMENT,
            "subject": [
                {"name": image.ref or image.digest, "digest": {"sha256": image.digest.removeprefix("sha256:")}}
            ],
            "predicateType": PREDICATE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {"definition": f"images/{folder.name}/image.yml"},
                    "internalParameters": {"lock": {"sha256": _sha256(lock)}} if lock is not None else {},
                    "resolvedDependencies": _inputs(folder, definition, packages, lock, image),
                },
                "runDetails": {"builder": {"id": BUILD_TYPE, "version": {"myriad": version}}},
            },
        }
    )


def attach_statement(
    image: LayoutImage, folder: Path, definition: ImageDefinition, packages: Packages, *, version: str
) -> str:
    """Attach the statement to the image by digest; returns the digest of the attached manifest."""
    data = statement(image, folder, definition, packages, version=version)
    return attach(image, MEDIA_TYPE, [(MEDIA_TYPE, data)], annotations={"in-toto.io/predicate-type": PREDICATE})


def _inputs(
    folder: Path, definition: ImageDefinition, packages: Packages, lock: Path | None, image: LayoutImage
) -> list[Json]:
    rows: list[Json] = [_file(f"images/{folder.name}/image.yml", folder / "image.yml")]
    rows += [_file(f"images/{folder.name}/{one.source}", folder / one.source) for one in definition.files]
    if lock is not None:
        rows.append(_file(lock.name if lock.parent != folder else f"images/{folder.name}/{lock.name}", lock))
    if isinstance(definition.base, ExternalBase):
        name, _, digest = definition.base.image.partition("@sha256:")
        rows.append({"uri": f"pkg:oci/{quote(name, safe='')}", "digest": {"sha256": digest}})
    elif image.layers:
        base = definition.base.name if isinstance(definition.base, OwnBase) else definition.base
        rows.append({"uri": f"base:{base}", "digest": {"sha256": image.layers[0].digest.removeprefix("sha256:")}})
    rows += [
        {"uri": f"pkg:pypi/{one.name}@{quote(one.version, safe='')}", "digest": {"sha256": one.sha256}}
        for one in packages.python
        if one.sha256
    ]
    return sorted(rows, key=lambda row: (row["uri"], row["digest"]["sha256"]))


def _lock(folder: Path, definition: ImageDefinition) -> Path | None:
    if definition.wheels is None:
        return None
    if definition.wheels.lock is not None:
        return folder / definition.wheels.lock
    return folder.resolve().parent.parent / "uv.lock"


def _file(uri: str, path: Path) -> Json:
    return {"uri": f"file:{quote(uri)}", "digest": {"sha256": _sha256(path)}}


def _sha256(path: Path) -> str:
    if not path.is_file():
        raise MyriadError(
            "an input of the image is missing", where=str(path), hint="run it in the checkout that built it"
        )
    return hash_of(path)


def held_against(image: LayoutImage, folder: Path, definition: ImageDefinition) -> list[Finding]:
    """What the attached statement says otherwise than the folder has it now; empty where none is attached."""
    data = attached(image, MEDIA_TYPE)
    if data is None:
        return []
    body = json.loads(data)
    digest = image.digest.removeprefix("sha256:")
    found = []
    if [one.get("digest", {}).get("sha256") for one in body.get("subject", ())] != [digest]:
        found.append(
            Finding(
                "provenance",
                "attached statement",
                "it is about another image",
                "build the image again, which attaches its own",
            )
        )
    lock = _lock(folder, definition)
    said = (
        body.get("predicate", {}).get("buildDefinition", {}).get("internalParameters", {}).get("lock", {}).get("sha256")
    )
    if lock is not None and lock.is_file() and said and said != _sha256(lock):
        found.append(
            Finding(
                "provenance",
                str(lock),
                f"the image was built with another lock (sha256 {said[:12]}...) than {lock.name} is now",
                "build the image again",
            )
        )
    return found

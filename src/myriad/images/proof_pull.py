"""An image of a registry as a layout on disk, with the documents and the signature that are attached to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from myriad.errors import InputError, MyriadError
from myriad.images.oci import Layout
from myriad.images.refs import parse_ref, stored_credentials
from myriad.images.registry import Registry, RegistryMissingError

SIGNATURE_SUFFIX = ".sig"


def signature_tag(digest: str) -> str:
    """The tag under which cosign keeps the signature of a manifest: `sha256-<hex>.sig`."""
    return digest.replace(":", "-") + SIGNATURE_SUFFIX


def pull_layout(reference: str, root: Path, *, ca: Path | None = None, blobs: bool = True) -> Path:
    """Pull an image for linux/amd64 with everything attached to it.

    Args:
        reference: `registry/repo:tag` or `registry/repo@sha256:...`, with `http://` before it for a registry without
            TLS.
        root: the layout to write.
        ca: certificate of the registry's CA.
        blobs: also the layers and documents; without them what a signature needs.

    Raises:
        InputError: the reference is none, or names neither tag nor digest.
        MyriadError: the registry does not answer, refuses or lacks it.
    """
    scheme, separator, plain = reference.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise InputError(
            f'"{reference}" begins with {scheme}://, which is no registry\'s address',
            hint=f"{plain}, with http:// before it for a registry without TLS",
        )
    ref = parse_ref(plain)
    if not ref.wanted:
        raise InputError(
            f'"{reference}" names neither a tag nor a digest', hint=f"{reference}:TAG or {reference}@sha256:..."
        )
    with Registry(f"{scheme}{separator}{ref.host}", ca=ca, credentials=stored_credentials(ref.host)) as registry:
        manifest = registry.image_manifest(ref.repo, ref.wanted)
        layout = Layout.empty(root)
        _write(registry, ref.repo, layout, manifest.value, layers=blobs)
        layout.add_manifest(
            manifest.body, media_type=manifest.media_type, ref=f"{ref.repo}:{ref.tag}" if ref.tag else ""
        )
        for one in registry.referrers(ref.repo, manifest.digest) if blobs else ():
            document = registry.manifest(ref.repo, one.digest)
            _write(registry, ref.repo, layout, document.value, layers=True)
            layout.add_manifest(document.body)
        tag = signature_tag(manifest.digest)
        try:
            signature = registry.manifest(ref.repo, tag)
        except RegistryMissingError:
            return root
        _write(registry, ref.repo, layout, signature.value, layers=True)
        layout.add_manifest(signature.body, ref=tag)
    return root


def _write(registry: Registry, repo: str, layout: Layout, manifest: Mapping[str, Any], *, layers: bool) -> None:
    for part in (manifest["config"], *(manifest["layers"] if layers else ())):
        path = layout.path(part["digest"])
        if path.is_file():
            continue
        partial = path.with_name(f".{path.name}")
        try:
            with partial.open("wb") as file:
                for chunk in registry.blob(repo, part["digest"]):
                    file.write(chunk)
        except MyriadError:
            partial.unlink(missing_ok=True)
            raise
        partial.replace(path)

"""Images of registries to build on: by digest, through the registry API, into the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext, BuildEvent, read_record, write_record
from myriad.images.oci import MEDIA_TYPE_LAYER_GZIP, MEDIA_TYPE_LAYER_ZSTD, Layer
from myriad.images.registry import Registry, parse_ref, stored_credentials
from myriad.stack.settings import read_mirrors

#: The same bytes under OCI's name, so that one manifest holds the base's layers and our own.
_AS_OCI = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": MEDIA_TYPE_LAYER_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar.zstd": MEDIA_TYPE_LAYER_ZSTD,
    MEDIA_TYPE_LAYER_GZIP: MEDIA_TYPE_LAYER_GZIP,
    MEDIA_TYPE_LAYER_ZSTD: MEDIA_TYPE_LAYER_ZSTD,
}
_HUB_HOST = "registry-1.docker.io"


@dataclass(frozen=True)
class Base:
    """What an image stands on: its layers, lowest first, and what its configuration says.

    Attributes:
        name: as history and labels name it; empty for the Debian base.
        digest: of its manifest; empty for the Debian base.
        env, labels: of its configuration.
        config: what a container of it is started with, as its configuration says it.
    """

    layers: tuple[Layer, ...]
    name: str = ""
    digest: str = ""
    env: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None
    config: Mapping[str, Any] | None = None


def registry_of(host: str) -> Registry:
    """The registry that serves a host's images: its mirror where the settings name one.

    A registry that is named by its own address is asked with the credentials that `docker login` keeps.
    """
    mirrors = read_mirrors()
    url = mirrors.registry_url(host)
    if url == f"https://{host}":
        url = f"https://{_HUB_HOST}" if host == "docker.io" else host
    return Registry(url, credentials=stored_credentials(host))


def pull_base(ctx: BuildContext, text: str, *, registry: Registry | None = None) -> Base:
    """Take an image by digest into the store.

    Args:
        text: `host/repository@sha256:...`; a tag before the `@` is kept for people and decides nothing.
        registry: where to ask; by default the host's own, or its mirror.

    Raises:
        InputError: no digest.
        RegistryMissingError, RegistryDeniedError, RegistryUnreachableError, RegistryError.
        MyriadError: it has a layer of a kind that cannot be built on.
    """
    ref = parse_ref(text)
    if not ref.digest:
        raise InputError(f"{text} is a tag, which can name other bits tomorrow", hint=f"write {text}@sha256:<digest>")
    record = ctx.cache_dir / "bases" / f"{ref.digest.removeprefix('sha256:')}.json"
    known = read_record(record)
    if known is not None and "config" in known:
        base = Base(**{**known, "layers": tuple(Layer(**one) for one in known["layers"])})
        if all(ctx.blobs.has(layer.digest, size=layer.size) for layer in base.layers):
            ctx.on_event(
                BuildEvent(f"base {ref.repo}", "cached", ref.digest, size=sum(one.size for one in base.layers))
            )
            return base
    own = registry is None
    client = registry or registry_of(ref.host)
    try:
        base = _pull(ctx, client, ref.repo, ref.digest, text)
    finally:
        if own:
            client.__exit__()
    write_record(record, {**vars(base), "layers": [vars(layer) for layer in base.layers]})
    return base


def _pull(ctx: BuildContext, registry: Registry, repo: str, digest: str, name: str) -> Base:
    step = f"base {repo}"
    ctx.on_event(BuildEvent(step, "started"))
    manifest = registry.image_manifest(repo, digest)
    value = manifest.value
    registry.fetch_blob(repo, value["config"]["digest"], ctx.blobs)
    config: dict[str, Any] = json.loads(ctx.blobs.path(value["config"]["digest"]).read_bytes())
    diff_ids: Sequence[str] = config.get("rootfs", {}).get("diff_ids", [])
    if len(diff_ids) != len(value["layers"]):
        raise MyriadError(f"{name} has {len(value['layers'])} layers, but its configuration names {len(diff_ids)}")
    layers = []
    total, done = sum(item["size"] for item in value["layers"]), 0
    for item, diff_id in zip(value["layers"], diff_ids, strict=True):
        media_type = _AS_OCI.get(item["mediaType"])
        if media_type is None:
            raise MyriadError(
                f"{name} has a layer of type {item['mediaType']}, which is not built on",
                hint="use a base whose layers are tar with gzip or zstd",
            )
        registry.fetch_blob(repo, item["digest"], ctx.blobs, size=item["size"])
        done += item["size"]
        ctx.on_event(BuildEvent(step, "progress", item["digest"], size=done, total=total))
        layers.append(
            Layer(item["digest"], diff_id, item["size"], tar_size=0, media_type=media_type, comment=f"base {name}")
        )
    ctx.on_event(BuildEvent(step, "finished", manifest.digest, size=total))
    runtime = config.get("config") or {}
    env = dict(entry.partition("=")[::2] for entry in runtime.get("Env") or ())
    return Base(tuple(layers), name, manifest.digest, env, dict(runtime.get("Labels") or {}), runtime)

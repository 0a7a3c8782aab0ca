"""Builds Myriad's images: the interface for bundles, the lab and the command line.

    ctx = BuildContext(store=cache / "store", cache_dir=cache / "images")
    image = component_image(ctx, repo="etcd", tag="3.6.14", binary=Path("etcd"), install_as="/usr/local/bin/etcd",
                            entrypoint=["/usr/local/bin/etcd"])
    image.blobs[image.manifest_digest].path

Nothing that is in the layer cache is built again; all digests depend on the inputs alone.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext, BuildEvent, read_record, write_record
from myriad.images.definition import ImageDefinition, load_definition
from myriad.images.layer import Entry, directory, file_from_bytes, file_from_path
from myriad.images.oci import BuiltImage, ImageConfig, Layer, open_layer, write_image, write_layer
from myriad.images.plan import Change, plan_layers, python_path
from myriad.images.python import source_layer, wheels_layer
from myriad.images.rootfs import DPKG_STATUS, Rootfs, build_base_layer, build_node_rootfs, packages_of_status

__all__ = [
    "BuildContext",
    "BuildEvent",
    "BuiltImage",
    "Layer",
    "Rootfs",
    "base_layer",
    "build_node_rootfs",
    "component_image",
    "debian_packages",
    "python_image",
    "skeleton_layer",
]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The unprivileged user of every image (the number that distroless images use, so manifests written for them fit).
NONROOT = 65532


def base_layer(ctx: BuildContext) -> Layer:
    """The Debian layer with Python and iptables that all Python images and kube-proxy share."""
    return build_base_layer(ctx)


def skeleton_layer(ctx: BuildContext) -> Layer:
    """What a static program expects around it: /tmp, the users root and nonroot, and where names are looked up."""
    entries = [
        directory("tmp", mode=0o1777),
        directory("home/nonroot", mode=0o700, uid=NONROOT, gid=NONROOT),
        file_from_bytes(
            "etc/passwd",
            f"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{NONROOT}:{NONROOT}:nonroot:/home/nonroot:/sbin/nologin\n".encode(),
        ),
        file_from_bytes("etc/group", f"root:x:0:\nnonroot:x:{NONROOT}:\n".encode()),
        file_from_bytes("etc/nsswitch.conf", b"hosts: files dns\n"),
    ]
    return layer_of(ctx, "skeleton", entries, comment="users, /tmp")


def component_image(
    ctx: BuildContext,
    *,
    repo: str,
    tag: str,
    binary: Path,
    install_as: str,
    entrypoint: Sequence[str],
    base: bool = False,
    user: str = "",
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> BuiltImage:
    """An image of one static program, alone or (`base`) on the shared Debian layer, for programs that call iptables.

    Args:
        repo: repository without a registry, `kube-apiserver`.
        tag: `v1.35.4`.
        binary: the program on this machine; it becomes root's, mode 0755.
        install_as: absolute path inside the image.
        entrypoint: what runs when the pod names no command.
        user: numeric `uid` or `uid:gid` (a pod with runAsNonRoot needs one); empty is root.

    Raises:
        InputError: the binary is missing.
    """
    if not binary.is_file():
        raise InputError(
            f"the program of image {repo}:{tag} is missing", where=str(binary), hint="build or fetch it first"
        )
    lowest = base_layer(ctx) if base else skeleton_layer(ctx)
    program = layer_of(ctx, repo, [file_from_path(install_as, binary, mode=0o755)], comment=f"{repo} {tag}")
    config = ImageConfig(
        entrypoint=entrypoint,
        env={"PATH": PATH, **(env or {})},
        user=user,
        labels={"org.opencontainers.image.title": repo, "org.opencontainers.image.version": tag, **(labels or {})},
    )
    return write_image(ctx.blobs, ref=f"{repo}:{tag}", layers=[lowest, program], config=config, epoch=ctx.epoch)


def python_image(ctx: BuildContext, folder: Path, tag: str) -> BuiltImage:
    """The image that `folder/image.yml` describes: the shared base, then wheels, then source and files, by how often
    they change.

    Raises:
        InputError: image.yml is wrong, or a file or module that it names is missing.
        MyriadError: the image is larger than its budget.
    """
    definition = load_definition(folder)
    planned = plan_layers(definition)
    base = base_layer(ctx)
    layers = [base, *(_upper_layer(ctx, folder, definition, base, one.change) for one in planned[1:])]
    env = {"PATH": PATH, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if search_path := python_path(planned):
        env["PYTHONPATH"] = search_path
    titles = {"org.opencontainers.image.title": definition.title, "org.opencontainers.image.version": tag}
    config = ImageConfig(
        entrypoint=definition.entrypoint,
        command=definition.command,
        env={**env, **definition.env},
        user=definition.user,
        labels={**titles, **definition.labels},
    )
    image = write_image(ctx.blobs, ref=f"{definition.repo}:{tag}", layers=layers, config=config, epoch=ctx.epoch)
    _check_budget(image, layers, budget=definition.budget_mb * 10**6, where=folder / "image.yml")
    return image


def _upper_layer(ctx: BuildContext, folder: Path, definition: ImageDefinition, base: Layer, change: Change) -> Layer:
    """Build a layer of the plan that stands on the base."""
    if change is Change.WHEELS and definition.wheels is not None:
        return wheels_layer(ctx, base, definition.wheels)
    if change is Change.SOURCE and definition.source is not None:
        return source_layer(ctx, base, definition.source)
    return layer_of(ctx, folder.name, _own_files(folder, definition), comment=f"files of {folder.name}")


def _own_files(folder: Path, definition: ImageDefinition) -> list[Entry]:
    entries = []
    for file in definition.files:
        source = folder / file.source
        if not source.is_file():
            raise InputError(f"files: {file.source} is missing", where=str(folder / "image.yml"))
        entries.append(file_from_path(file.target, source, mode=int(file.mode, 8)))
    return entries


def _check_budget(image: BuiltImage, layers: Sequence[Layer], *, budget: int, where: Path) -> None:
    if image.size > budget:
        sizes = ", ".join(f"{layer.comment} {layer.size:,}" for layer in layers)
        raise MyriadError(
            f"{image.ref} is {image.size:,} bytes, {image.size - budget:,} over its budget_mb ({sizes})",
            where=str(where),
            hint="leave files out by wheels.exclude, or raise budget_mb and say why",
        )


def debian_packages(image: BuiltImage) -> dict[str, str]:
    """The Debian packages inside an image with their versions, from dpkg's status in its layers; empty for a program
    alone."""
    for digest in reversed(image.layer_digests):
        with open_layer(image.blobs[digest]) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name == DPKG_STATUS else None
                if file is not None:
                    return packages_of_status(file.read().decode())
    return {}


def layer_of(ctx: BuildContext, step: str, entries: Sequence[Entry], *, comment: str) -> Layer:
    """A layer of files that are at hand, cached by their content."""
    inputs = [
        [entry.path, entry.kind.value, entry.mode, entry.uid, entry.gid, entry.target, _content_digest(ctx, entry)]
        for entry in sorted(entries, key=lambda one: one.path)
    ]
    return ctx.cached_layer(
        step,
        {"comment": comment, "entries": inputs},
        lambda: write_layer(ctx.blobs, entries, comment=comment, epoch=ctx.epoch),
    )


def _content_digest(ctx: BuildContext, entry: Entry) -> str:
    """sha256 of an entry's content; of large files it is remembered by path, size, time and inode, as reading them
    costs most of a build."""
    if entry.content is None:
        return ""
    if entry.source is None or entry.size < 1 << 20:
        return _hash(entry)
    status = entry.source.stat()
    name = hashlib.sha256(f"{entry.source.resolve()}".encode()).hexdigest()
    seen = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
    record = ctx.cache_dir / "hashes" / f"{name}.json"
    known = read_record(record)
    if known is not None and known["seen"] == seen:
        return str(known["sha256"])
    digest = _hash(entry)
    write_record(record, {"seen": seen, "sha256": digest})
    return digest


def _hash(entry: Entry) -> str:
    if entry.content is None:
        return ""
    with entry.content() as file:
        value = hashlib.sha256()
        while chunk := file.read(1 << 20):
            value.update(chunk)
    return value.hexdigest()

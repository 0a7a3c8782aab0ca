"""Builds Myriad's images: the interface for bundles, the lab and the command line.

    ctx = BuildContext(store=cache / "store", cache_dir=cache / "images")
    image = component_image(ctx, repo="etcd", tag="3.6.14", binary=Path("etcd"), install_as="/usr/local/bin/etcd",
                            entrypoint=["/usr/local/bin/etcd"])
    image.blobs[image.manifest_digest].path

Nothing that is in the layer cache is built again; all digests depend on the inputs alone.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from myriad.errors import InputError
from myriad.images.context import BuildContext, BuildEvent
from myriad.images.files import layer_of
from myriad.images.layer import directory, file_from_bytes, file_from_path
from myriad.images.oci import BuiltImage, ImageConfig, Layer, open_layer, write_image
from myriad.images.rootfs import DPKG_STATUS, Rootfs, build_base_layer, build_node_rootfs, packages_of_status
from myriad.images.runtime import PATH, build_runtime

__all__ = [
    "BuildContext",
    "BuildEvent",
    "BuiltImage",
    "Layer",
    "Rootfs",
    "base_layer",
    "build_node_rootfs",
    "build_runtime",
    "component_image",
    "debian_packages",
    "python_image",
    "skeleton_layer",
]

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
    """The image that `folder/image.yml` describes.

    Raises:
        InputError: image.yml is wrong, or a file or module that it names is missing.
        MyriadError: the image is larger than its budget.
    """
    return build_runtime(ctx, folder, tag).built


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

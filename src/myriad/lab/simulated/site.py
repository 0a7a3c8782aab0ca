"""Writes a simulated site: its description, its hosts, and a bundle of small files where no real one is given."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import yaml

from myriad.lab.simulated import host as hosts
from myriad.stack.bundle import FILE_MEDIA_TYPE, MANIFEST, Blob, FileEntry, ImageEntry, Manifest, Origin, manifest_bytes

#: Hosts of a rack, and racks of a block.
RACK, BLOCK = 8, 16
_FIRST = IPv4Address("10.20.0.2")
_ARTIFACTS = (
    "containerd", "containerd-shim-runc-v2", "ctr", "runc", "crictl", "bridge", "host-local", "loopback", "portmap",
    "kubelet", "kubeadm", "kubectl", "registry", "registry-front", "helm", "kueue-chart",
)  # fmt: skip
_IMAGES = ("pause", "myriad/gang-check", "myriad/extension", "myriad/agent")
_ORIGIN = Origin(source="local", folder="simulated")


@dataclass(frozen=True, slots=True)
class SimulatedSite:
    """Where the parts of a simulated site lie.

    Attributes:
        folder: all of it.
        names: the GPU nodes, in the order of their addresses.
    """

    folder: Path
    names: tuple[str, ...]

    @property
    def inventory(self) -> Path:
        """The description, for `-i`."""
        return self.folder / "inventory"

    @property
    def hosts(self) -> Path:
        """One file a host."""
        return self.folder / "hosts"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig on the controller."""
        return self.folder / "admin.conf"


def node_names(count: int) -> tuple[str, ...]:
    """Names of GPU nodes: gpu0001 and so on."""
    return tuple(f"gpu{number:04}" for number in range(1, count + 1))


def address_of(name: str) -> str:
    """Address of a host: the control plane's is the first, GPU nodes follow by number."""
    return str(_FIRST + (0 if name == "cp1" else int(name.removeprefix("gpu"))))


def location_of(name: str) -> str:
    """Room, block and rack of a GPU node."""
    rack = (int(name.removeprefix("gpu")) - 1) // RACK
    return f"hall1/b{rack // BLOCK + 1}/r{rack + 1:03}"


def write_site(folder: Path, count: int, *, bundle: Path | None = None, network: str = "fabric") -> SimulatedSite:
    """A site of one control plane and GPU nodes that have all converged, in an empty folder.

    Args:
        folder: where it goes.
        count: GPU nodes.
        bundle: a real bundle; without one a bundle of small files is written.
        network: `pod_network_mode`.
    """
    site = SimulatedSite(folder, node_names(count))
    site.hosts.mkdir(parents=True)
    for name in ("cp1", *site.names):
        machine = hosts.bare(name, address_of(name))
        machine.adopts = True
        hosts.save(site.hosts, machine)
    write_description(site, bundle=bundle or write_bundle(folder / "bundle"), network=network)
    return site


def write_description(site: SimulatedSite, *, bundle: Path, network: str) -> None:
    """The inventory of a site, new or in place of the one that is there."""
    folder = site.inventory / "group_vars" / "all"
    folder.mkdir(parents=True, exist_ok=True)
    nodes = {name: {"ansible_host": address_of(name), "myriad_location": location_of(name)} for name in site.names}
    groups = {
        "control_plane": {"hosts": {"cp1": {"ansible_host": address_of("cp1")}}},
        "gpu_nodes": {"children": {"pool_h100": {"hosts": nodes}}},
    }
    _write(site.inventory / "hosts.yml", {"all": {"children": groups}})
    _write(folder / "cluster.yml", _cluster())
    _write(folder / "teams.yml", _teams())
    _write(folder / "site.yml", _settings(site, bundle, network))


def add_nodes(site: SimulatedSite, count: int, *, bundle: Path, network: str) -> SimulatedSite:
    """The same site with bare machines more; the hosts that are there stay as they are."""
    grown = SimulatedSite(site.folder, node_names(len(site.names) + count))
    for name in grown.names[len(site.names) :]:
        hosts.save(site.hosts, hosts.bare(name, address_of(name)))
    write_description(grown, bundle=bundle, network=network)
    return grown


def set_dead(site: SimulatedSite, names: Iterable[str], dead: bool) -> None:
    """Let hosts answer nothing, or again."""
    for name in names:
        machine = hosts.load(site.hosts, address_of(name))
        machine.dead = dead
        hosts.save(site.hosts, machine)


def _cluster() -> dict[str, Any]:
    return {
        "myriad_cluster": {"name": "simulated", "topology_levels": ["room", "block", "rack"]},
        "myriad_pools": {"h100": {"model": "H100-SXM5-80GB", "gpus_per_node": 8, "use": "training", "engine": "kueue"}},
        "myriad_priorities": {"urgent": 1000, "normal": 500, "scavenge": 100},
        "myriad_preemption": {"grace_s": 300, "min_run_s": 1800, "checkpoint_max_age_s": 3600},
        "myriad_cohorts": {"research": {}},
        "myriad_images": {"warm": [{"image": "gang-check", "pools": ["h100"]}]},
    }


def _teams() -> dict[str, Any]:
    return {
        "myriad_teams": {
            "vision": {"namespaces": ["vision"], "quota": {"h100": 16}, "weight": 2, "cohort": "research"},
            "speech": {"namespaces": ["speech"], "quota": {"h100": 8}, "cohort": "research"},
        }
    }


def _settings(site: SimulatedSite, bundle: Path, network: str) -> dict[str, Any]:
    return {
        "site_bundle": str(bundle),
        "site_kubeconfig": str(site.kubeconfig),
        "site_node_network": "10.20.0.0/16",
        "site_device_plugin_image": f"registry.myriad.internal/vendor/device-plugin@sha256:{'0' * 64}",
        "ansible_python_interpreter": "/usr/bin/python3",
        "gpu_driver_existing": "skip",
        "gpu_toolkit_packages": [],
        "pod_network_mode": network,
        "pod_network_cidr": "10.64.0.0/10",
        "pod_network_node_prefix": 26,
    }


def _write(path: Path, content: Any) -> None:
    path.write_text(yaml.dump(content, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False))


def _tar(name: str, content: bytes) -> bytes:
    """A layer of one file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def write_bundle(folder: Path, names: Sequence[str] = _ARTIFACTS, images: Sequence[str] = _IMAGES) -> Path:
    """A bundle whose files hold their names; enough for roles that send digests and never look inside."""
    folder.mkdir(parents=True, exist_ok=True)

    def put(content: bytes, media_type: str = FILE_MEDIA_TYPE) -> Blob:
        digest = hashlib.sha256(content).hexdigest()
        path = folder / "sha256" / digest[:2] / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return Blob(sha256=digest, size=len(content), media_type=media_type)

    files = []
    for name in names:
        blob = put(f"{name}\n".encode())
        kind = "chart" if name.endswith("-chart") else "binary"
        files.append(
            FileEntry(
                name=name, component=name, version="1.0.0", kind=kind, sha256=blob.sha256, size=blob.size,
                origin=_ORIGIN,
            )
        )  # fmt: skip
    pictures = []
    for repo in images:
        layer = put(_tar("image", f"{repo}\n".encode()), "application/vnd.oci.image.layer.v1.tar")
        rootfs = {"type": "layers", "diff_ids": [f"sha256:{layer.sha256}"]}
        config = put(json.dumps({"architecture": "amd64", "os": "linux", "rootfs": rootfs}).encode())
        named = [{"mediaType": b.media_type, "digest": f"sha256:{b.sha256}", "size": b.size} for b in (config, layer)]
        manifest = put(json.dumps({"schemaVersion": 2, "config": named[0], "layers": named[1:]}).encode())
        pictures.append(
            ImageEntry(
                ref=f"{repo}:1.0.0", component=repo, version="1.0.0", digest=f"sha256:{manifest.sha256}",
                media_type="application/vnd.oci.image.manifest.v1+json", size=manifest.size, blobs=[config, layer],
                origin=_ORIGIN,
            )
        )  # fmt: skip
    manifest_ = Manifest(
        format=1, myriad=version("myriad"), arch="amd64", lock_sha256="0" * 64, files=files, images=pictures,
        versions={"kubernetes": "1.35.4", "containerd": "2.3.4", "kueue": "0.17.0"},
    )  # fmt: skip
    (folder / MANIFEST).write_bytes(manifest_bytes(manifest_))
    return folder

"""A seed for cloud-init (NoCloud): a small disk labelled CIDATA that tells a machine its name and who may log in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from myriad.nodeimage.tools import run

_SIZE_BYTES = 1 << 20


@dataclass(frozen=True)
class Key:
    """A key pair of one build or one test; the private half is a file."""

    private: Path
    public: str


def make_key(folder: Path) -> Key:
    """A fresh key pair in a folder that only this user reads."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    path = folder / "id_ed25519"
    for leftover in (path, path.with_suffix(".pub")):
        leftover.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "node-image", "-f", path]
    run(command, what="ssh-keygen could not make a key")
    return Key(path, path.with_suffix(".pub").read_text(encoding="utf-8").strip())


def user_data(public: str) -> str:
    """Root may log in with one key; no other user is made, so nothing of the seed is left after the seal."""
    config = {
        "disable_root": False,
        "ssh_pwauth": False,
        "users": [{"name": "root", "lock_passwd": True, "ssh_authorized_keys": [public]}],
    }
    return "#cloud-config\n" + yaml.safe_dump(config, sort_keys=False, width=1000)


def network_config(addresses: Mapping[str, str]) -> dict[str, Any]:
    """Interfaces by MAC address: an address with its prefix, or `dhcp`."""
    interfaces = {}
    for number, (mac, address) in enumerate(addresses.items()):
        given: dict[str, Any] = {"dhcp4": True} if address == "dhcp" else {"addresses": [address], "optional": True}
        interfaces[f"link{number}"] = {"match": {"macaddress": mac}, **given}
    return {"version": 2, "ethernets": interfaces}


def write_seed(path: Path, *, name: str, public: str, addresses: Mapping[str, str] | None = None) -> None:
    """Write the disk.

    Args:
        addresses: by MAC address, for machines with more than one interface; DHCP on the first one without it.

    Raises:
        MyriadError: a tool fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with path.open("wb") as stream:
        stream.truncate(_SIZE_BYTES)
    run(["mkfs.vfat", "-n", "CIDATA", path], what="mkfs.vfat could not make the seed")
    documents = {
        "user-data": user_data(public),
        "meta-data": yaml.safe_dump({"instance-id": f"{name}-1", "local-hostname": name}),
    }
    if addresses:
        documents["network-config"] = yaml.safe_dump(network_config(addresses))
    for name_, text in documents.items():
        file = path.with_name(name_)
        file.write_text(text, encoding="utf-8")
        run(["mcopy", "-o", "-i", path, file, f"::/{name_}"], what="mcopy could not write the seed")
        file.unlink()

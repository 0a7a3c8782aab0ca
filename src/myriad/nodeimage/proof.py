"""Proves a node image: boots it once, looks at what only a booted machine shows, runs the configure halves on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from myriad.errors import InputError, MyriadError
from myriad.nodeimage import seed
from myriad.nodeimage.definition import NodeImage
from myriad.nodeimage.guest import Guest, accelerator
from myriad.nodeimage.manifest import NodeManifest, load
from myriad.nodeimage.provision import HOST, Site, play, variables
from myriad.nodeimage.store import REGISTRY
from myriad.nodeimage.tools import need
from myriad.stack.bundle import Bundle
from myriad.stack.serve import BundleServer

OUTSIDE = "10.0.2.2"
"""How a machine on QEMU's user network reaches the machine that runs it."""

_UEFI = (Path("/usr/share/ovmf/OVMF.fd"), Path("/usr/share/qemu/OVMF.fd"))
_CRICTL = "/usr/local/bin/crictl --runtime-endpoint unix:///run/containerd/containerd.sock"


@dataclass(frozen=True)
class Proof:
    """One thing that was looked at, and what was found."""

    what: str
    ok: bool
    told: str

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


OnProof = Callable[[Proof], None]


def prove(
    image: NodeImage,
    folder: Path,
    disk: Path,
    bundle: Bundle,
    scratch: Path,
    *,
    uefi: bool = False,
    on_proof: OnProof = lambda proof: None,
) -> list[Proof]:
    """Boot an image and give what was found, in order. The disk itself is not written to.

    Raises:
        MyriadError: it does not come as far as ssh; with the cause.
    """
    need(["qemu-system-x86_64", "qemu-img", "ssh", "mkfs.vfat", "mcopy"])
    manifest = load(disk.parent)
    key = seed.make_key(scratch / "key")
    seed_disk = scratch / "seed.img"
    seed.write_seed(seed_disk, name=HOST, public=key.public)
    guest = Guest(
        disk,
        scratch / "guest",
        key.private,
        seed=seed_disk,
        memory_mb=image.targets.qemu.memory_mb,
        cpus=image.targets.qemu.cpus,
        accelerator=accelerator(image.targets.qemu.accelerator),
        firmware=uefi_firmware() if uefi else None,
    )
    with guest, BundleServer(bundle) as server:
        return _Prover(image, folder, manifest, guest, bundle, server.port, scratch, on_proof).run()


def uefi_firmware() -> Path:
    """UEFI for QEMU. Raises InputError when the machine has none."""
    for path in _UEFI:
        if path.is_file():
            return path
    raise InputError("there is no UEFI firmware for QEMU", where=str(_UEFI[0]), hint="apt-get install ovmf")


def inventory(guest: Guest, variables_: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Ansible's inventory with the guest as its only host."""
    options = " ".join(guest.ssh_arguments()[: guest.ssh_arguments().index("-i")])
    host = {
        "ansible_host": "127.0.0.1",
        "ansible_port": guest.ssh_port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(guest.key),
        "ansible_ssh_common_args": options.replace("-o BatchMode=yes ", ""),
        **(variables_ or {}),
    }
    return {"all": {"hosts": {HOST: host}}}


def waits_for_a_card(loading: Sequence[str]) -> frozenset[str]:
    """Units that a machine without a card cannot start, from what systemd-modules-load said.

    That unit stands for all modules, so it is among them only where no module but the card's own is missing.
    """
    said = ("Failed to insert module", "Failed to find module")
    lacking = [line for line in loading if line.startswith(said)]
    units = {"nvidia-persistenced.service"}
    if lacking and all("nvidia" in line for line in lacking):
        units.add("systemd-modules-load.service")
    return frozenset(units)


class _Prover:
    def __init__(
        self,
        image: NodeImage,
        folder: Path,
        manifest: NodeManifest,
        guest: Guest,
        bundle: Bundle,
        port: int,
        scratch: Path,
        on_proof: OnProof,
    ) -> None:
        self.image, self.folder, self.manifest, self.guest = image, folder, manifest, guest
        self.bundle, self.port, self.scratch, self.on_proof = bundle, port, scratch, on_proof
        self.proofs: list[Proof] = []

    def run(self) -> list[Proof]:
        seconds = self.guest.wait(self.image.deadlines_s.ssh)
        self.add("ssh", True, f"answers with the seed's key after {seconds:.0f} s ({self.guest.accelerator})")
        self._identity()
        self._kernel()
        if self.image.images:
            self.guest.run("systemctl start containerd")
            self._store("images in the store")
            self._container()
        self._configure()
        if self.image.images:
            state = self.guest.run("systemctl is-active containerd", check=False).strip()
            self.add("runtime after configure", state == "active", f"containerd.service is {state}")
            self._store("images after configure")
        return self.proofs

    def add(self, what: str, ok: bool, told: str) -> None:
        proof = Proof(what, ok, told)
        self.proofs.append(proof)
        self.on_proof(proof)

    def _identity(self) -> None:
        said = self.guest.run(
            "cat /etc/machine-id; ls /etc/ssh/ssh_host_*_key | wc -l; systemctl is-system-running; hostname"
        ).split()
        machine, keys, state, name = (*said, "", "", "", "")[:4]
        self.add(
            "identity",
            len(machine) == 32 and int(keys or 0) > 0,
            f"its own machine id, {keys} ssh host keys, name {name}",
        )
        self._units(state)

    def _units(self, state: str) -> None:
        """Every unit runs, but for those that a machine without a card cannot start."""
        script = """systemctl --failed --plain --no-legend | cut -d' ' -f1
        echo ---; cat /sys/bus/pci/devices/*/vendor | grep -c 0x10de
        echo ---; journalctl --boot --unit systemd-modules-load --output cat --no-pager"""
        parts = self.guest.run(script, check=False).split("---")
        failed, cards, loading = (part.strip().splitlines() for part in (*parts, "", "", "")[:3])
        excused = waits_for_a_card(loading) if cards == ["0"] else frozenset()
        broken = ", ".join(unit for unit in failed if unit not in excused)
        waits = ", ".join(unit for unit in failed if unit in excused)
        told = f"system {state}" + (f", failed: {broken}; {' / '.join(loading[-4:])}" if broken else "")
        self.add("units", not broken, told + (f", without a card cannot start: {waits}" if waits else ""))

    def _kernel(self) -> None:
        found = self.guest.run("uname -r").strip()
        built = {module.vermagic for module in self.manifest.modules}
        told = f"{found}, modules built for {', '.join(sorted(built)) or 'none'}"
        self.add("kernel", found == self.image.kernel and built <= {found}, told)
        if self.image.driver is None:
            return
        said = self.guest.run("modprobe nvidia 2>&1; echo code $?", check=False).strip()
        only_device = "No such device" in said and "code 1" in said
        version = next((module.version for module in self.manifest.modules), "")
        last = said.splitlines()[0] if said else "it said nothing"
        self.add("module", only_device or said.endswith("code 0"), f"nvidia {version}: {last}")

    def _store(self, what: str) -> None:
        answers = f"for i in $(seq 60); do {_CRICTL} version > /dev/null 2>&1 && break; sleep 1; done"
        script = f"{answers}; {_CRICTL} images --output json"
        found = {tag: one for one in json.loads(self.guest.run(script))["images"] for tag in one.get("repoTags", ())}
        wrong = []
        for stored in self.manifest.images:
            ref = f"{REGISTRY}/{stored.ref}"
            digests = [digest.partition("@")[2] for digest in found.get(ref, {}).get("repoDigests", ())]
            if stored.digest not in digests:
                wrong.append(f"{stored.ref} is missing")
            elif not found[ref].get("pinned"):
                wrong.append(f"{stored.ref} is not pinned")
        self.add(what, not wrong, "; ".join(wrong) or f"{len(self.manifest.images)} by digest, all pinned")

    def _container(self) -> None:
        """The snapshot is usable: a container of the smallest image starts from it, without a pull."""
        pause = next((one for one in self.manifest.images if one.ref.startswith("pause:")), None)
        if pause is None:
            return
        ctr = "/usr/local/bin/ctr --namespace k8s.io"
        script = f"""{ctr} run --detach {REGISTRY}/{pause.ref} proof > /run/proof.log 2>&1 || cat /run/proof.log
        sleep 1; {ctr} tasks list | grep proof
        {ctr} tasks kill --signal 9 proof; sleep 1; {ctr} containers delete proof"""
        said = self.guest.run(script, check=False)
        self.add(
            "container",
            "RUNNING" in said,
            f"{pause.ref} {'starts from the store' if 'RUNNING' in said else said.strip()}",
        )

    def _configure(self) -> None:
        site = Site(self.bundle.directory, f"http://{OUTSIDE}:{self.port}")
        extra = variables(self.image, site)
        extra["node_image_roles"] = [
            role for role in self.image.roles if role != "gpu_toolkit" or not self._without_toolkit()
        ]
        host = {"gpu_driver_existing": "replace"} if self.image.driver else {}
        log = self.scratch / "configure.log"
        for again in (False, True):
            try:
                result = play(
                    self.folder / "configure.yml",
                    inventory(self.guest, host),
                    {**extra, "node_image_again": again},
                    log=log,
                    on_line=lambda line: None,
                )
            except MyriadError as error:
                self.add("configure again" if again else "configure", False, error.message)
                return
            tasks, changed = sum(result.task_counts().values()), result.changed_count
            if again:
                items = [item for one in result.hosts.values() for item in one.changed_items]
                told = f"{tasks} tasks, {changed} changed, the machine is as recorded {'; '.join(items)}".rstrip()
                self.add("configure again", changed == 0, told)
            else:
                self.add(
                    "configure", True, f"{tasks} tasks, {changed} changed, {result.seconds:.0f} s; it joined nothing"
                )

    def _without_toolkit(self) -> bool:
        return "nvidia-container-toolkit" in self.manifest.left_out

"""The NodePortrait: what a node was found to be, each fact with its source and the time since when it is so. Pure.

One portrait is the `status` of the object `nodeportraits.myriad.dev/<node>`; what the description wants of the node is
its `spec` (`Spec`). In Python names are snake_case, in documents camelCase (`Document.document`).

Three rules keep the object quiet, so that thousands of nodes cost the API server next to nothing:

- an observation's `at` is the time since when its content has been the same (`settle`), not the time of the last look;
- numbers that move (temperature, utilisation, clocks) are gauges of the agent and never stand here;
- counters that may run (corrected errors, Xids) stand here as powers of two, "at least" (`at_least`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

LEASE_PREFIX = "myriad-agent-"
LEASE_NAMESPACE = "myriad-system"
STALE_AFTER_INTERVALS = 3
"""A Lease that was not renewed for this many of its own durations makes the portrait stale."""

# Keys of observations. A GPU's own facts are `gpus/<index>`, so that a change of one leaves the times of the others.
GPUS = "gpus"
PCI = "pci"
MODULE = "module"
FABRIC_MANAGER = "fabric-manager"
KERNEL = "kernel"
KERNEL_LOG = "kernel-log"
DEVICE_NODES = "device-nodes"
NETWORK = "network"
NEIGHBOURS = "neighbours"
HOST_CUDA = "host-cuda"
CATALOG = "catalog"

Vendor = Literal["nvidia", "ascend"]
LinkKind = Literal["nvswitch", "nvlink", "hccs", "pcie"]
Band = Literal["normal", "hot", "slowdown"]
MigMode = Literal["enabled", "disabled"]


class Document(BaseModel):
    """Part of a portrait. None is "not known" and is left out of documents; an empty list is "known to be none"."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    def document(self) -> dict[str, Any]:
        """As it stands in an object: camelCase, without what is not known."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Observation(Document):
    """One look at one source.

    Attributes:
        source: what was asked, such as `nvidia-smi -q -x` or a path.
        at: since when its content has been the same (RFC 3339, UTC).
        fault: why nothing (or not all) could be learnt, as a sentence; empty where it could.
    """

    source: str
    at: str
    fault: str = ""


class Group(Document):
    """Facts that come from one look; `observed` is the key of its observation, None where it is the parent's.

    `elsewhere` names the fields that another look gave, with its key.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {}

    observed: str | None = None


class Link(Group):
    """How a GPU reaches the others and the host.

    Attributes:
        kind: the best way to other GPUs of the node.
        peers: indices of the GPUs reached that way; None where not asked.
        links: links per GPU of that kind that are up.
        pcie_generation: highest generation that card and slot both have (the current one falls while a card idles).
        pcie_width: lanes in use now; fewer than `pcie_width_max` is a fault of slot, riser or card.
        pcie_width_max: lanes that card and slot both have.
    """

    kind: LinkKind | None = None
    peers: tuple[int, ...] | None = None
    links: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


class MigSlice(Group):
    """One MIG compute instance. `profile` as the vendor writes it, such as `1g.10gb`."""

    profile: str
    uuid: str = ""
    memory_mib: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Mig(Group):
    """MIG of one GPU; a GPU that cannot do MIG has none. `pending` differs from `mode` until a reset or reboot."""

    mode: MigMode
    pending: MigMode
    slices: tuple[MigSlice, ...] = ()


class Ecc(Group):
    """Error correction.

    Attributes:
        enabled: in force now.
        pending: in force after the next reset.
        uncorrected: uncorrected errors over the card's life.
        volatile_uncorrected: uncorrected errors since the driver was loaded.
        corrected_at_least: corrected errors over the card's life, as a power of two.
    """

    enabled: bool
    pending: bool | None = None
    uncorrected: int | None = None
    volatile_uncorrected: int | None = None
    corrected_at_least: int | None = None


class RowRemap(Group):
    """Rows of memory replaced by spare ones; before Ampere, pages retired.

    `pending`: takes a reset; `failure`: no spare rows are left.
    """

    pending: bool
    failure: bool
    corrected: int = 0
    uncorrected: int = 0

    @property
    def count(self) -> int:
        """All remapped rows."""
        return self.corrected + self.uncorrected


class Xid(Group):
    """Error reports of the driver for one GPU. `first_at`: the first one of this boot; `at_least`: power of two."""

    code: int
    at_least: int = 1
    first_at: str = ""


class Gpu(Group):
    """One GPU (or NPU).

    Attributes:
        index: the driver's index.
        uuid: the vendor's unique id.
        vendor: whose.
        model: its name in the catalog; empty where the catalog does not know it.
        product: what the driver calls it.
        architecture: such as "hopper"; empty where not known.
        memory_mib: memory as the driver counts it.
        memory_bandwidth_gb_s: from the catalog's figures.
        pci_address: `0000:1b:00.0`.
        pci_device: vendor and device id, `10de:2330`.
        numa_node: None where the machine has one node or does not say.
        cpu_affinity: CPUs next to it as a list, `0-47,96-143`.
        vbios: firmware.
        driver: version that the driver reports for it.
        throttle: serious reasons why it is slowed down; None where not asked.
        temperature: band; None where not known.
        xids: errors seen since boot; None where the kernel's log cannot be read.
        fault: why it cannot be used at all (lost from the bus, ...); empty where it can.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "model": CATALOG,
        "memory_bandwidth_gb_s": CATALOG,
        "numa_node": PCI,
        "cpu_affinity": PCI,
        "xids": KERNEL_LOG,
    }

    index: int
    uuid: str = ""
    vendor: Vendor
    model: str = ""
    product: str = ""
    architecture: str = ""
    memory_mib: int | None = None
    memory_bandwidth_gb_s: float | None = Field(None, alias="memoryBandwidthGBps")
    link: Link = Link()
    pci_address: str = ""
    pci_device: str = ""
    numa_node: int | None = None
    cpu_affinity: str = ""
    mig: Mig | None = None
    vbios: str = ""
    ecc: Ecc | None = None
    row_remap: RowRemap | None = None
    throttle: tuple[str, ...] | None = None
    temperature: Band | None = None
    xids: tuple[Xid, ...] | None = None
    driver: str = ""
    fault: str = ""


class Driver(Group):
    """Versions of one driver's parts; None where a part is not there or could not be asked.

    Attributes:
        vendor: whose.
        loaded: version of the kernel module that runs.
        userspace: version of the library that programs load.
        fabric_manager: version of the fabric manager; None where it is not installed.
        cuda: highest CUDA version that the driver serves.
        open: whether the open kernel module runs.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"cuda": GPUS, "fabric_manager": FABRIC_MANAGER}

    vendor: Vendor
    loaded: str | None = None
    userspace: str | None = None
    fabric_manager: str | None = None
    cuda: str | None = None
    open: bool | None = None


class Fabric(Group):
    """NVLink fabric as the GPUs see it; the worst of all GPUs.

    Attributes:
        state: `completed`, `in-progress`, `not-started` (lower case, hyphens); None where there is none.
        status: `success` or what the driver says instead.
        cluster_uuid: which NVLink domain; None where the fabric ends at the chassis.
        clique: partition inside that domain.
    """

    state: str | None = None
    status: str | None = None
    cluster_uuid: str | None = None
    clique: int | None = None


class PciDevice(Group):
    """A GPU (or NVSwitch) on the PCI bus, whether a driver knows it or not. Ids as `10de`, `2330`."""

    address: str
    vendor: str
    device: str
    subsystem_vendor: str = ""
    subsystem_device: str = ""
    driver: str = ""
    numa_node: int | None = None


class Bus(Group):
    """What stands on the PCI bus."""

    gpus: tuple[PciDevice, ...] = ()
    switches: tuple[PciDevice, ...] = ()


class Kernel(Group):
    """The operating system's kernel."""

    release: str = ""
    numa_nodes: int | None = None
    cpus: int | None = None


class DeviceNodes(Group):
    """Device files of the driver, by name below the dev root (`nvidia0`, `nvidiactl`, `davinci0`)."""

    names: tuple[str, ...] = ()


class Nic(Group):
    """One network interface that carries traffic between nodes.

    Attributes:
        name: interface.
        device: RDMA device, such as `mlx5_0`; empty where it has none.
        kind: `infiniband`, `roce` or `ethernet`.
        rate_gbit_s: gigabits a second of the link as it is now; None while it is down.
        state: `up` or `down`.
        mtu: bytes.
        numa_node: None where not known.
        pci_address: where it stands.
        guid: port's or node's id; empty where there is none.
    """

    name: str
    device: str = ""
    kind: Literal["infiniband", "roce", "ethernet"] = "ethernet"
    rate_gbit_s: float | None = Field(None, alias="rateGbps")
    state: Literal["up", "down"] = "down"
    mtu: int | None = None
    numa_node: int | None = None
    pci_address: str = ""
    guid: str = ""


class Neighbour(Group):
    """What LLDP says stands at the other end of an interface."""

    interface: str
    chassis: str = ""
    chassis_id: str = ""
    port: str = ""
    port_description: str = ""


class HostCuda(Group):
    """CUDA on the host itself, which containers do not need. `version` is empty where nothing tells it."""

    kind: Literal["toolkit", "compat", "loader"]
    path: str
    version: str = ""


class Summary(Document):
    """The portrait in one line, for tables. `model` is `mixed` where GPUs differ; `gate` is `open` or `closed`."""

    gpus: int | None = None
    model: str = ""
    driver: str = ""
    gate: str = ""
    cause: str = ""


class Portrait(Document):
    """What a node was found to be."""

    node: str
    summary: Summary = Summary()
    machine_id: str = ""
    boot_id: str = ""
    observations: dict[str, Observation] = Field(default_factory=dict)
    kernel: Kernel = Kernel()
    pci: Bus = Bus()
    gpus: tuple[Gpu, ...] = ()
    drivers: tuple[Driver, ...] = ()
    fabric: Fabric = Fabric()
    device_nodes: DeviceNodes = DeviceNodes()
    nics: tuple[Nic, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    host_cuda: tuple[HostCuda, ...] = ()

    @property
    def driver(self) -> Driver | None:
        """The driver, where the node has one vendor's GPUs."""
        return self.drivers[0] if self.drivers else None

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """GPUs that the driver can use."""
        return tuple(gpu for gpu in self.gpus if not gpu.fault)

    def fault(self, key: str) -> str:
        """Why the observation `key` has nothing to say: its sentence, or that it was never made; empty where it has."""
        found = self.observations.get(key)
        return f"nothing was asked about {key}" if found is None else found.fault


# What the description wants of the node


class Versions(Document):
    """Exact versions that the lock names; empty where the description leaves a part alone."""

    driver: str = ""
    fabric_manager: str = ""


class ExpectedMig(Document):
    """MIG as described; all empty means whole cards.

    Attributes:
        profiles: slices wanted on each GPU by profile, where all GPUs are cut alike.
        cards: profiles by GPU index, where they differ; an index that is not named is a whole card.
    """

    profiles: dict[str, int] = Field(default_factory=dict)
    cards: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class ExpectedFabric(Document):
    """Interfaces, NVLink domain and neighbours as described.

    Attributes:
        interfaces: name to {kind, rate_gbit_s, mtu} wanted.
        cluster_uuid: NVLink domain; empty where any will do.
        neighbours: switches near the node with the places that they serve.
        required: a node that sees none of them stays out.
    """

    interfaces: dict[str, dict[str, str | int | float]] = Field(default_factory=dict)
    cluster_uuid: str = ""
    neighbours: dict[str, str] = Field(default_factory=dict)
    required: bool = False


class Expected(Document):
    """What has to be found before the node takes work.

    Attributes:
        gpus: how many.
        model: name in the catalog; empty where any will do.
        resource: what the kubelet counts GPUs by.
        resources: amounts that the kubelet has to count by resource; empty where `gpus` of `resource` says it.
        versions: the driver's exact versions.
        mig: slices.
        location: room, block, rack.
        fabric: interfaces, NVLink domain, neighbours.
        registry: address of the registry that the node has to reach; empty where nobody asks.
        images: images that have to be warm, by digest.
        accepted: mismatches that a person has accepted, by the check's name (or `check:found`).
    """

    gpus: int = 0
    model: str = ""
    resource: str = "nvidia.com/gpu"
    resources: dict[str, int] = Field(default_factory=dict)
    versions: Versions = Versions()
    mig: ExpectedMig = ExpectedMig()
    location: tuple[str, ...] = ()
    fabric: ExpectedFabric = ExpectedFabric()
    registry: str = ""
    images: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()


class Taint(Document):
    """A taint as it stands on a Node."""

    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    value: str = ""


LabelSet = Literal["own", "gfd", "topograph", "topograph-v0", "topograph-v0.1", "cloud"]
MigStrategy = Literal["auto", "none", "single", "mixed"]


class Labelling(Document):
    """Which labels are derived from what was measured.

    Attributes:
        sets: vocabularies: `own` (myriad.dev/), `gfd` (GPU feature discovery), `topograph` (1.0 and later),
            `topograph-v0` (0.2 to 0.5), `topograph-v0.1`, `cloud` (topology.kubernetes.io).
        mig_strategy: the device plugin's; `auto` says what the cards' layout amounts to.
        replicas: how many containers share a GPU by time slicing; 1 where nobody shares.
        zone_level: which step of the location is the zone of the cloud keys, 0 the outermost.
    """

    sets: tuple[LabelSet, ...] = ("own",)
    mig_strategy: MigStrategy = "auto"
    replicas: int = Field(1, ge=1)
    zone_level: int = Field(0, ge=0)


class Spec(Document):
    """`spec` of a NodePortrait. It outlives the Node: the agent puts labels and taints back after a rejoin."""

    labels: dict[str, str] = Field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    expected: Expected = Expected()
    labelling: Labelling = Labelling()


# Facts one by one


class Fact(Document):
    """One fact with where it comes from. `value` is a JSON value."""

    path: str
    value: Any
    source: str
    at: str


def facts(portrait: Portrait) -> list[Fact]:
    """Every known fact of a portrait with its source and time, in the document's order and names."""
    return [
        Fact(
            path=path,
            value=value,
            source=portrait.observations[key].source if key in portrait.observations else "",
            at=portrait.observations[key].at if key in portrait.observations else "",
        )
        for key, path, value in _leaves(portrait)
    ]


_LOOKS = {
    "machine_id": KERNEL,
    "boot_id": KERNEL,
    "kernel": KERNEL,
    "pci": PCI,
    "gpus": GPUS,
    "drivers": MODULE,
    "fabric": GPUS,
    "device_nodes": DEVICE_NODES,
    "nics": NETWORK,
    "neighbours": NEIGHBOURS,
    "host_cuda": HOST_CUDA,
}
"""Which look gave a part that does not say so itself: an empty list has no room for it."""


def _leaves(portrait: Portrait) -> Iterator[tuple[str, str, Any]]:
    fields = type(portrait).model_fields
    for name, look in _LOOKS.items():
        for key, path, value in _walk(getattr(portrait, name), fields[name].alias or name, look):
            if key in portrait.observations:
                yield key, path, value


def _walk(value: Any, path: str, key: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, Group):
        key = value.observed or key
    if isinstance(value, Document):
        for name, field in type(value).model_fields.items():
            if name != "observed":
                look = value.elsewhere.get(name, key) if isinstance(value, Group) else key
                yield from _walk(getattr(value, name), f"{path}.{field.alias or name}", look)
    elif isinstance(value, tuple) and any(isinstance(item, Document) for item in value):
        for place, item in enumerate(value):
            yield from _walk(item, f"{path}[{place}]", key)
    elif value is not None and value != "":
        yield key, path, list(value) if isinstance(value, tuple) else value


def settle(new: Portrait, old: Portrait | None) -> Portrait:
    """`new` with the times of `old` wherever an observation says the same as before; equal to `old` if all do."""
    if old is None or new.node != old.node or new.boot_id != old.boot_id:
        return new
    said_new, said_old = _by_observation(new), _by_observation(old)
    kept = {}
    for key, observation in new.observations.items():
        before = old.observations.get(key)
        same = (
            before is not None
            and (before.source, before.fault) == (observation.source, observation.fault)
            and said_new.get(key) == said_old.get(key)
        )
        kept[key] = before if same and before is not None else observation
    return new.model_copy(update={"observations": kept})


def _by_observation(portrait: Portrait) -> dict[str, list[tuple[str, Any]]]:
    said: dict[str, list[tuple[str, Any]]] = {}
    for key, path, value in _leaves(portrait):
        said.setdefault(key, []).append((path, value))
    return said


def fresh(portrait: Mapping[str, Any] | Portrait | None, lease: Mapping[str, Any] | None, now: datetime) -> str:
    """Why a portrait must not be trusted, as a sentence; empty where it may.

    Args:
        portrait: a NodePortrait's status; None where it has none.
        lease: the Lease `myriad-agent-<node>`; None where there is none.
        now: an aware time.
    """
    if not portrait:
        return "the node has no portrait yet"
    if lease is None:
        return "no agent holds a Lease for this node"
    spec = lease.get("spec") or {}
    text = spec.get("renewTime")
    try:
        renewed = datetime.fromisoformat(str(text))
    except ValueError:
        return "the agent's Lease was never renewed"
    allowed_s = STALE_AFTER_INTERVALS * int(spec.get("leaseDurationSeconds") or 40)
    age = now - renewed
    if age > timedelta(seconds=allowed_s):
        heard_s = int(age.total_seconds())
        return f"the agent has not been heard of for {heard_s} s (stale after {allowed_s} s)"
    return ""

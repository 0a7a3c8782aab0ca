"""What a simulated cluster is: its nodes, its teams' quotas, and how fast and how faithfully things happen."""

from __future__ import annotations

from dataclasses import dataclass, field

from myriad.errors import InputError
from myriad.scheduler.model import DEFAULT_GPU_RESOURCE, NodeInfo, PlacementPolicy
from myriad.scheduler.policy import ProtectionPolicy

POOL = "h100"


@dataclass(frozen=True, slots=True)
class TeamQuota:
    """A team's ClusterQueue in GPUs; ``borrow`` and ``lend`` bound what it takes from and gives to the cohort."""

    nominal: int
    borrow: int | None = None
    lend: int | None = None


@dataclass(frozen=True, slots=True)
class Failures:
    """Nodes that die: each after an exponential time with this mean, back after ``repair_s``. 0 = never."""

    mean_s: float = 0.0
    repair_s: float = 4 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """A simulated cluster. Times are seconds.

    Attributes:
        nodes, racks, blocks, rooms: how many of each; racks are of nearly equal size.
        gpus_per_node: GPUs of a node.
        teams: quotas by team, all in one cohort. Their sum may exceed the cluster (quota is no hardware).
        steered: Myriad steers; without it every choice is Kueue's.
        grace_s: what an evicted pod may take to end; each draws its own time up to this.
        start_s: from the last pod's binding to a running job (image, start).
        pods_ready_timeout_s: a gang that does not run this long after its admission is evicted and queued again.
        settle_s, pass_s: a pass follows a change after ``settle_s`` and the last pass after ``pass_s`` at least.
        planned_per_queue: as in `Settings`.
        checkpoint_s: a dead node costs a job what it did since its last multiple of this.
        failures: dying nodes.
        protection: domains are protected for gangs that wait too long; None = never. Looked at every ``protect_s``.
        until_s: the end of the simulation; 0 = when every job has ended or can never start.
        observe_s: how often ``observe`` is called.
        policy: the planner's inputs.
        compare: plan every gang that Kueue places by our own planner too, and record both tiers.
        check_invariants: look for double bookings, overdrawn quotas and half-bound gangs at every event.
    """

    nodes: int = 1250
    racks: int = 160
    blocks: int = 10
    rooms: int = 2
    gpus_per_node: int = 8
    teams: dict[str, TeamQuota] = field(default_factory=dict)
    steered: bool = True
    grace_s: float = 300.0
    start_s: float = 20.0
    pods_ready_timeout_s: float = 900.0
    settle_s: float = 0.1
    pass_s: float = 2.0
    planned_per_queue: int = 50
    checkpoint_s: float = 900.0
    failures: Failures = Failures()
    protection: ProtectionPolicy | None = None
    protect_s: float = 60.0
    until_s: float = 0.0
    observe_s: float = 0.0
    policy: PlacementPolicy = field(default_factory=PlacementPolicy)
    compare: bool = False
    check_invariants: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be laid out."""
        if not self.nodes >= self.racks >= self.blocks >= self.rooms >= 1:
            raise InputError(
                f"{self.nodes} nodes in {self.racks} racks, {self.blocks} blocks, {self.rooms} rooms",
                hint="there must be at least one room, and no fewer of a narrower level than of a broader one",
            )
        if not self.teams:
            raise InputError("a simulated cluster without teams", hint="give teams={'name': TeamQuota(nominal=...)}")

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return self.nodes * self.gpus_per_node


def site_nodes(config: SimConfig) -> list[NodeInfo]:
    """The nodes of a simulated cluster, labelled as the description labels real ones."""
    out = []
    for k in range(config.nodes):
        rack = k * config.racks // config.nodes
        block = rack * config.blocks // config.racks
        room = block * config.rooms // config.blocks
        location = (f"hall{room + 1}", f"b{block + 1:02d}", f"r{rack + 1:03d}")
        name = f"gpu{k:05d}"
        labels = {
            "kubernetes.io/hostname": name,
            "myriad.dev/pool": POOL,
            "myriad.dev/gpu-model": "H100-SXM5-80GB",
            "myriad.dev/gpu-expected": str(config.gpus_per_node),
            "myriad.dev/room": location[0],
            "myriad.dev/block": ".".join(location[:2]),
            "myriad.dev/rack": ".".join(location),
        }
        allocatable = {
            "cpu_milli": 192_000,
            "memory_bytes": 2 << 40,
            "pods": 250,
            DEFAULT_GPU_RESOURCE: config.gpus_per_node,
        }
        out.append(NodeInfo(name, labels, location=location, pool=POOL, allocatable=allocatable))
    return out

"""The description of a cluster as typed, frozen objects.

Every field has a default that is right for most. What a field refuses, it refuses with a sentence that reads on from
the key (`is -8; a quota is 0 or more GPUs`); `myriad.fleet.schema` collects those sentences, and `myriad.fleet.check`
adds what only several parts together can tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from myriad.errors import InputError
from myriad.fleet import names, quantity
from myriad.fleet.catalog import model_fault
from myriad.fleet.fields import Part, empty_mapping, faultless, flag, items, one_of, positive, refuse, text, whole
from myriad.fleet.mig import Cut, read_cut
from myriad.fleet.model_policy import (
    Admission,
    Alignment,
    Hours,
    Idle,
    Level,
    NotifyTarget,
    Protection,
    Seconds,
    Unlimited,
    subject_fault,
)
from myriad.prewarm.limits import Limits

MAX_GPUS_PER_NODE = 32
MAX_PRIORITY = 1_000_000_000
"""Highest value of a PriorityClass that users may make; what is above belongs to Kubernetes.
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/"""
RESERVED_NAMESPACES = frozenset(
    {
        "default",
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "kueue-system",
        "volcano-system",
        "volcano-monitoring",
        "kubeflow",
        "myriad-metrics",
        "myriad-system",
    }
)
INFERENCE_COHORT_SUFFIX = "-inference"
"""Inference pools get a cohort tree of their own: training never lends to or borrows from them by accident."""


def _memory(value: Any) -> str | None:
    if value is None:
        return None
    try:
        size, binary = quantity.parse(value)
    except ValueError:
        size, binary = Fraction(0), True
    if isinstance(value, bool) or size <= 0:
        raise refuse(f'is {names.show(value)}; memory is a quantity such as "200Gi"')
    return quantity.canonical(size, binary=binary)


def _gpu_model(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise refuse(f"is {names.show(value)}; write the GPU model, for example H100-SXM5-80GB")
    fault = model_fault(value)
    if fault is not None:
        raise refuse(fault)
    return str(value)


def _namespace_fault(value: Any) -> str | None:
    fault = names.dns_label_fault(value)
    if fault is None and (value in RESERVED_NAMESPACES or value.startswith("kube-")):
        return f'"{value}" belongs to the system; a team needs a namespace of its own'
    return fault


def _priority_name_fault(value: Any) -> str | None:
    fault = names.dns_label_fault(value)
    if fault is None and value.startswith("system-"):
        return f'"{value}" begins with "system-", which Kubernetes keeps for itself; choose another name'
    return fault


def _warm_items(value: Any) -> Any:
    if value is not None and not isinstance(value, list | tuple):
        raise refuse(f"is {names.show(value)}; write a list, for example [{{image: gang-check, pools: [h100]}}]")
    return tuple(value or ())


def _digest(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", value)):
        return value
    raise refuse(f"is {names.show(value)}; a digest is sha256: and 64 hexadecimal digits")


def _key_file(value: Any) -> str:
    if value is None or value == "":
        return ""
    if not isinstance(value, str):
        raise refuse(f"is {names.show(value)}; write the path of a public key, for example keys/cosign.pub")
    return value


def _prewarm_limits(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refuse(f"is {names.show(value)}; write limit: number, for example {{rack_gbit: 10}}")
    try:
        Limits.read(dict(value))
    except InputError as error:
        raise refuse(f"{error.message}{f'; {error.hint}' if error.hint else ''}") from error
    return dict(value)


Name = Annotated[str, BeforeValidator(faultless(names.dns_label_fault))]
Namespace = Annotated[str, BeforeValidator(faultless(_namespace_fault))]
PriorityName = Annotated[str, BeforeValidator(faultless(_priority_name_fault))]
Gpus = Annotated[int, BeforeValidator(whole("a quota is 0 or more GPUs", low=0, high=10**7))]
BorrowedGpus = Annotated[int, BeforeValidator(whole("what may be borrowed is 0 or more GPUs", low=0, high=10**7))]
LentGpus = Annotated[int, BeforeValidator(whole("what may be lent is 0 or more GPUs", low=0, high=10**7))]
ReservedGpus = Annotated[int, BeforeValidator(whole("a reserve is 0 or more GPUs", low=0, high=10**7))]
Subject = Annotated[str, BeforeValidator(faultless(subject_fault))]
Weight = Annotated[Fraction, BeforeValidator(positive("a weight is a number above 0 (2 gets twice the share of 1)"))]
Priority = Annotated[
    int,
    BeforeValidator(
        whole(
            f"a priority is from 0 (below it ranks behind pods without a class) to {MAX_PRIORITY} "
            "(above belongs to Kubernetes)",
            low=0,
            high=MAX_PRIORITY,
        )
    ),
]
Levels = Annotated[tuple[Level, ...], BeforeValidator(items("level names, outermost first", "[room, block, rack]"))]
Use = Literal["training", "inference"]
Engine = Literal["kueue", "volcano"]
Period = Literal["day", "week", "month", "quarter", "year"]
MappingOf = BeforeValidator(empty_mapping)


class Cluster(Part):
    """The cluster itself: its name and the levels of its places, outermost first."""

    name: Name = "cluster"
    topology_levels: Levels = Field(default=("room", "block", "rack"), min_length=1, max_length=15)


def _cut(value: Any) -> Cut:
    try:
        return value if isinstance(value, Cut) else read_cut(value)
    except ValueError as error:
        raise refuse(str(error)) from error


class Sharing(Part):
    """Several pods on one whole GPU, taking turns. Nothing keeps their memory apart."""

    replicas: Annotated[
        int, BeforeValidator(whole("replicas are a whole number of pods on one GPU, from 1 to 48", low=1, high=48))
    ] = 1


class Pool(Part):
    """Nodes of one kind: GPU model, cards a node, what they are used for, and who places jobs on them.

    `cpu_per_gpu` (cores) and `memory_per_gpu` (a quantity) turn a GPU quota into CPU and memory quotas; without them
    CPU and memory never bind. `mig` cuts the cards into slices, `sharing` lets pods take turns on whole ones; without
    either a pod gets whole cards. Quotas stay in GPUs: a GPU that is cut seven ways is seven slices of quota.
    `alignment` is what the kubelet does to keep a pod's CPUs beside its GPUs.

    `max_hours` is the longest time limit that a job may ask for. A job without one gets `default_hours`, is refused, or
    runs without end, as `unlimited` says (`default`, `refuse`, `allow`; by itself `default` where there is one).
    """

    model: Annotated[str, BeforeValidator(_gpu_model)]
    gpus_per_node: Annotated[
        int,
        BeforeValidator(
            whole(f"a node has a whole number of GPUs from 1 to {MAX_GPUS_PER_NODE}", low=1, high=MAX_GPUS_PER_NODE)
        ),
    ] = 8
    use: Annotated[Use, BeforeValidator(one_of("training", "inference"))] = "training"
    engine: Annotated[Engine, BeforeValidator(one_of("kueue", "volcano"))] = "kueue"
    resource: Annotated[str, BeforeValidator(faultless(names.extended_resource_fault))] = "nvidia.com/gpu"
    cpu_per_gpu: (
        Annotated[Fraction, BeforeValidator(positive("cpu_per_gpu is a number of cores above 0, for example 24"))]
        | None
    ) = None
    memory_per_gpu: Annotated[str | None, BeforeValidator(_memory)] = None
    mig: Annotated[Cut, BeforeValidator(_cut)] = Field(default_factory=Cut)
    sharing: Sharing = Field(default_factory=Sharing)
    alignment: Alignment = Field(default_factory=Alignment)
    default_hours: Hours | None = None
    max_hours: Hours | None = None
    unlimited: Annotated[Unlimited | None, BeforeValidator(one_of("default", "refuse", "allow"))] = None

    @property
    def without_limit(self) -> Unlimited:
        """What becomes of a job without a time limit."""
        return self.unlimited or ("allow" if self.default_hours is None else "default")


class GpuHours(Part):
    """A budget in one pool: GPU-hours in each calendar period. When it is used up, jobs that run finish, or leave."""

    budget: Annotated[
        int,
        BeforeValidator(whole("a budget is a whole number of GPU-hours, 1 or more", low=1, high=10**12)),
    ]
    period: Annotated[Period, BeforeValidator(one_of("day", "week", "month", "quarter", "year"))] = "month"
    used_up: Annotated[Literal["finish", "leave"], BeforeValidator(one_of("finish", "leave"))] = "finish"


class Project(Part):
    """A part of a team's work with budgets of its own: jobs whose pods carry the label myriad.dev/project."""

    gpu_hours: Annotated[dict[Name, GpuHours], MappingOf] = Field(default_factory=dict)


class Team(Part):
    """A team: where it works, what it owns, and how it shares.

    Attributes:
        quota: GPUs that the team owns, by pool. A pool that is not named is closed to the team.
        weight: its part when unused quota is shared out.
        cohort: with whom it shares; without one it neither borrows nor lends.
        borrow: most GPUs that it may borrow, by pool. A pool that is not named has no limit.
        lend: most GPUs of its own that others may use, by pool. A pool that is not named has no limit.
        reserve: GPUs of its quota in an inference pool that are never lent, so that a service can grow at once.
        gpu_hours: budgets by pool.
        projects: budgets of projects, within those of the team.
        notify: who is told about preemptions and budgets: targets of `myriad_notify`.
        groups: groups of people who belong to it, as the cluster's login names them. Without any, `myriad:TEAM`.
        users: people who belong to it by their own name.
        pod_security: what its pods may ask of a node (Kubernetes' Pod Security Standards).
    """

    namespaces: Annotated[tuple[Namespace, ...], BeforeValidator(items("namespaces"))] = ()
    quota: Annotated[dict[Name, Gpus], MappingOf] = Field(default_factory=dict)
    weight: Weight = Fraction(1)
    cohort: Name | None = None
    borrow: Annotated[dict[Name, BorrowedGpus], MappingOf] = Field(default_factory=dict)
    lend: Annotated[dict[Name, LentGpus], MappingOf] = Field(default_factory=dict)
    reserve: Annotated[dict[Name, ReservedGpus], MappingOf] = Field(default_factory=dict)
    gpu_hours: Annotated[dict[Name, GpuHours], MappingOf] = Field(default_factory=dict)
    projects: Annotated[dict[Name, Project], MappingOf] = Field(default_factory=dict)
    notify: Annotated[
        tuple[Annotated[str, BeforeValidator(text("write a name or an address"))], ...],
        BeforeValidator(items("names or addresses")),
    ] = ()
    groups: Annotated[
        tuple[Subject, ...], BeforeValidator(items("groups of the cluster's login", "[oidc:vision]"))
    ] = ()
    users: Annotated[tuple[Subject, ...], BeforeValidator(items("users of the cluster's login", "[oidc:alice]"))] = ()
    pod_security: Annotated[
        Literal["restricted", "baseline", "privileged"], BeforeValidator(one_of("restricted", "baseline", "privileged"))
    ] = "baseline"


class Cohort(Part):
    """Teams that lend each other what they do not use. Cohorts form a tree: unused quota also flows along parents."""

    parent: Name | None = None
    weight: Weight = Fraction(1)


class Preemption(Part):
    """How a running job is asked to leave, in seconds."""

    grace_s: Seconds = 300
    min_run_s: Seconds = 1800
    checkpoint_max_age_s: Seconds = 3600


class WarmImage(Part):
    """An image that is kept on nodes. `pools` empty means every pool.

    An image that the bundle holds needs no `digest`; one that was pushed to the site's registry does.
    """

    image: Annotated[str, BeforeValidator(text("write the name of an image, for example gang-check"))]
    pools: Annotated[tuple[Name, ...], BeforeValidator(items("pools"))] = ()
    digest: Annotated[str | None, BeforeValidator(_digest)] = None


class Images(Part):
    """Images and where they are kept warm.

    Attributes:
        warm: which, on which pools.
        prewarm: how many nodes pull at once, and when a rollout stops (`registry_gbit`, `rack_gbit`, `node_gbit`,
            `registry_nodes`, `rack_nodes`, `jitter_s`, `failure_share`, `failures`).
        signing_key: public key (a file on the controller) with which images have to be signed; empty asks for none.
    """

    warm: Annotated[tuple[WarmImage, ...], BeforeValidator(_warm_items)] = ()
    prewarm: Annotated[dict[str, float], BeforeValidator(_prewarm_limits)] = Field(default_factory=dict)
    signing_key: Annotated[str, BeforeValidator(_key_file)] = ""


def _switch_places(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refuse(f"is {names.show(value)}; write switch: place, for example {{tor-r1: hall1/b1/r1}}")
    for name in value:
        # A bare 17 in YAML is a number; the switch may be called so all the same.
        if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip():
            raise refuse(f"names a switch {names.show(name)}; write its name in LLDP in quotes, for example tor-r1")
    return {str(name).strip(): place for name, place in value.items()}


def _switch_place(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip("/ "):
        raise refuse(f"is {names.show(value)}; write the place of the switch, for example hall1/b1/r1")
    return value


def _rails(value: Any) -> Any:
    if value is not None and not isinstance(value, list | tuple):
        raise refuse(f"is {names.show(value)}; write a list, for example [{{interface: ens1f0np0}}]")
    return tuple(value or ())


def _interface_fault(value: Any) -> str | None:
    # A kernel's own rule: at most 15 characters, no blank and no slash (dev_valid_name in net/core/dev.c).
    fits = isinstance(value, str) and 0 < len(value.encode()) <= 15 and value not in (".", "..")
    if not fits or any(mark in "/:" or mark.isspace() for mark in value):
        return f"is {names.show(value)}; write the name of a network interface, for example ens1f0np0"
    return None


class Topology(Part):
    """What is known of the cables, to check `myriad_location` against what the nodes see.

    Attributes:
        switches: switch (its LLDP system name or chassis id, or its InfiniBand name or GUID) to the place that it
            serves: a rack, or any level above. Without any, `myriad topology` infers them from most of their nodes.
        accept: nodes that may take work although their cables say otherwise.
        required: a node of a place with described switches that sees no neighbour stays out too.
    """

    switches: Annotated[dict[str, Annotated[str, BeforeValidator(_switch_place)]], BeforeValidator(_switch_places)] = (
        Field(default_factory=dict)
    )
    accept: Annotated[
        tuple[Annotated[str, BeforeValidator(text("write the name of a node, for example gpu1"))], ...],
        BeforeValidator(items("nodes", "[gpu1]")),
    ] = ()
    required: Annotated[bool, BeforeValidator(flag)] = False


class Rail(Part):
    """One interface of the fabric on every node of a pool.

    Attributes:
        interface: its name on the node.
        address: address with prefix length, made for each node from {rail} (0, 1, ...), {number} (the last number in
            the node's name), {high} and {low} (its two bytes) and {o1} to {o4} (the parts of its ansible_host); None
            leaves the interface without one.
    """

    interface: Annotated[str, BeforeValidator(faultless(_interface_fault))]
    address: (
        Annotated[str, BeforeValidator(text('write a pattern, for example "10.200.{rail}.{number}/24"'))] | None
    ) = None


class Fabric(Part):
    """Interfaces of one pool that carry traffic between GPUs.

    Attributes:
        kind: roce or infiniband.
        rails: the interfaces, in the order of the GPUs that stand next to them.
        mtu: bytes of a packet on the interface (InfiniBand: of IPoIB in datagram mode, at most 4092).
        rate_gbit_s: gigabits a second that each link must have; None asks nobody.
        pfc: priority flow control for `priority`; RoCE only.
        ecn: explicit congestion notification for `priority`; RoCE only.
        priority: priority of the traffic that must not be lost.
        trust: what a packet's priority is read from: dscp or pcp.
    """

    kind: Annotated[Literal["roce", "infiniband"], BeforeValidator(one_of("roce", "infiniband"))] = "roce"
    rails: Annotated[tuple[Rail, ...], BeforeValidator(_rails)] = ()
    mtu: Annotated[
        int, BeforeValidator(whole("an MTU is a number of bytes from 1280 to 9978", low=1280, high=9978))
    ] = 4092
    rate_gbit_s: (
        Annotated[int, BeforeValidator(whole("a rate is a whole number of gigabits a second", low=1, high=10**5))]
        | None
    ) = None
    pfc: Annotated[bool, BeforeValidator(flag)] = False
    ecn: Annotated[bool, BeforeValidator(flag)] = False
    priority: Annotated[
        int, BeforeValidator(whole("the priority of lossless traffic is a number from 0 to 7", low=0, high=7))
    ] = 3
    trust: Annotated[Literal["dscp", "pcp"], BeforeValidator(one_of("dscp", "pcp"))] = "dscp"


class BurnIn(Part):
    """What the nodes of a pool must reach in the multi-node bandwidth test before a rack is opened.

    Attributes:
        gb_s: gigabytes a second that each node must reach (NCCL's bus bandwidth where GPUs are; TCP otherwise).
        of_median: a node below this part of the median of its group is slow, whatever the threshold says.
        mib: size of what is reduced in each step.
        seconds: how long each group is measured.
    """

    gb_s: (
        Annotated[Fraction, BeforeValidator(positive("a threshold is a number of gigabytes a second above 0"))] | None
    ) = None
    of_median: Annotated[
        Fraction, BeforeValidator(positive("a part of the median is a number above 0, up to 1, such as 0.8", most=1))
    ] = Fraction(4, 5)
    mib: Annotated[
        int, BeforeValidator(whole("a size is a whole number of MiB from 1 to 65536", low=1, high=65536))
    ] = 64
    seconds: Annotated[
        int, BeforeValidator(whole("a measurement takes a whole number of seconds from 1 to 3600", low=1, high=3600))
    ] = 10


class Host(Part):
    """One machine.

    Attributes:
        address: how it is reached (`ansible_host`), or its name.
        location: one step for each topology level, outermost first; empty where the host has no GPUs.
        pool: the pool that it belongs to; None for a machine without GPUs.
        gpu_model: the model that its pool names; None without a pool.
        gpus: GPUs that must be found before it takes work.
        is_control_plane: whether it runs the control plane. A control plane may be a GPU node too.
    """

    name: str
    address: str
    location: tuple[str, ...] = ()
    pool: str | None = None
    gpu_model: str | None = None
    gpus: int = 0
    is_control_plane: bool = False


class Fleet(Part):
    """The whole description. Made by `myriad.fleet.check`, which guarantees that its references hold."""

    cluster: Cluster = Field(default_factory=Cluster)
    hosts: dict[str, Host] = Field(default_factory=dict)
    pools: dict[str, Pool] = Field(default_factory=dict)
    teams: dict[str, Team] = Field(default_factory=dict)
    cohorts: dict[str, Cohort] = Field(default_factory=dict)
    priorities: dict[str, int] = Field(default_factory=dict)
    preemption: Preemption = Field(default_factory=Preemption)
    images: Images = Field(default_factory=Images)
    topology: Topology = Field(default_factory=Topology)
    fabrics: dict[str, Fabric] = Field(default_factory=dict)
    burn_in: dict[str, BurnIn] = Field(default_factory=dict)
    protection: Protection = Field(default_factory=Protection)
    notify: dict[str, NotifyTarget] = Field(default_factory=dict)
    idle: Idle = Field(default_factory=Idle)
    admission: Admission = Field(default_factory=Admission)

    @cached_property
    def hosts_by_pool(self) -> Mapping[str, tuple[Host, ...]]:
        """Hosts of each pool, in the inventory's order. Every pool has an entry."""
        grouped: dict[str, list[Host]] = {pool: [] for pool in self.pools}
        for host in self.hosts.values():
            if host.pool is not None:
                grouped.setdefault(host.pool, []).append(host)
        return {pool: tuple(members) for pool, members in grouped.items()}

    @cached_property
    def capacity(self) -> Mapping[str, int]:
        """Expected GPUs of each pool."""
        return {pool: sum(host.gpus for host in members) for pool, members in self.hosts_by_pool.items()}

    @property
    def gpus(self) -> int:
        """Expected GPUs of the whole site."""
        return sum(self.capacity.values())

    @property
    def control_plane(self) -> tuple[Host, ...]:
        """Machines of the control plane."""
        return tuple(host for host in self.hosts.values() if host.is_control_plane)

    def places(self, level: int) -> tuple[tuple[str, ...], ...]:
        """Different places at a level (0 is the outermost), as paths from the outermost step, in order."""
        return tuple(sorted({host.location[: level + 1] for host in self.hosts.values() if host.location}))


def cohort_of(team: Team, pool: Pool) -> str | None:
    """Cohort in which a team shares a pool: inference pools have a tree of their own."""
    if team.cohort is None:
        return None
    return inference_cohort(team.cohort) if pool.use == "inference" else team.cohort


def inference_cohort(cohort: str) -> str:
    """Name of the inference twin of a cohort."""
    return f"{cohort}{INFERENCE_COHORT_SUFFIX}"


def cluster_queue_name(team: str, pool: str) -> str:
    """Name of the ClusterQueue in which a team's quota of a pool stands."""
    return f"{team}-{pool}"


def pool_group(pool: str) -> str:
    """Inventory group of a pool. Ansible's group names have no hyphens, Kubernetes' names no underscores."""
    return f"pool_{pool.replace('-', '_')}"


def pool_of_group(group: str, pools: Mapping[str, Any]) -> str | None:
    """Pool that a group `pool_...` stands for; None when the description has no such pool."""
    name = group.removeprefix("pool_")
    if name in pools:
        return name
    return next((pool for pool in pools if pool_group(str(pool)) == group), None)


DEFAULT_PRIORITIES: Mapping[str, int] = {"urgent": 1000, "normal": 500, "scavenge": 100}

DESCRIPTION_VARIABLES = (
    "myriad_cluster",
    "myriad_pools",
    "myriad_teams",
    "myriad_cohorts",
    "myriad_priorities",
    "myriad_preemption",
    "myriad_images",
    "myriad_topology",
    "myriad_fabric",
    "myriad_burn_in",
    "myriad_protection",
    "myriad_notify",
    "myriad_idle",
    "myriad_admission",
)
"""The variables of group `all` that describe a site."""

HOST_VARIABLES = ("myriad_location", "myriad_gpus")
"""The variables that describe one host (or, set on a group, all hosts of a rack). `myriad_gpus` is the expected number
of GPUs of a node that has fewer than its pool's nodes."""

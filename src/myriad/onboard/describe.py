"""The files of a description, from what machines were found to be. Pure.

The layout is that of every inventory here: hosts.yml says where things stand, group_vars/all the rest.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from myriad.errors import InputError
from myriad.fleet import names
from myriad.fleet.catalog import CATALOG, GpuModel
from myriad.fleet.model import DEFAULT_PRIORITIES, Pool, pool_group
from myriad.onboard.facts import HostFacts, inventory_names

COHORT = "everyone"
UNKNOWN = "unknown"
"""Place of a machine whose rack nobody has said: one place for all of them, so nothing is preferred."""
BUNDLE = "~/myriad-bundle"


@dataclass(frozen=True, slots=True)
class Description:
    """Files by their path below the inventory's folder, and what a person should know of them."""

    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Login:
    """How Ansible reaches the hosts.

    Attributes:
        user: who logs in; root's rights are had by sudo where it is somebody else.
        users: of hosts where it is another than `user`, by host as it was asked.
        port: 22 is not written.
        key: file of the private key; empty takes ssh's own choice.
        options: as after `ssh -o`.
    """

    user: str = "root"
    users: Mapping[str, str] = field(default_factory=dict)
    port: int = 22
    key: str = ""
    options: tuple[str, ...] = ()


def check_names(name: str, team: str) -> None:
    """Raise InputError where the cluster or its first team cannot be called so."""
    for what, value in (("--name", name), ("--team", team)):
        fault = names.dns_label_fault(value)
        if fault is not None:
            raise InputError(fault, where=what, hint=f"give {what} one that Kubernetes takes")


def check_control_plane(asked: Sequence[str], chosen: Sequence[str]) -> None:
    """Raise InputError where a host that is chosen for the control plane is not among the hosts."""
    known = set(asked)
    strangers = [name for name in chosen if name not in known]
    if strangers:
        raise InputError(
            f"{', '.join(strangers)} {'is' if len(strangers) == 1 else 'are'} not among the hosts",
            where="--control-plane",
            hint=f"name hosts of --hosts: {names.listing(asked)}",
        )


def control_plane_of(hosts: Sequence[HostFacts], chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Hosts (as asked) of the control plane: those that are chosen, or the first without GPUs, or the first.

    Raises:
        InputError: one that is chosen is not among the hosts.
    """
    asked = [host.asked for host in hosts]
    check_control_plane(asked, chosen)
    plain = [host.asked for host in hosts if not host.gpus]
    return tuple(chosen) or tuple((plain or asked)[:1])


def pools_of(hosts: Sequence[HostFacts]) -> dict[str, tuple[GpuModel, int]]:
    """Pools by name: one for each GPU model, with its model and the most GPUs that a node has of it.

    Raises:
        InputError: no host has a GPU.
    """
    most: dict[str, int] = {}
    for host in hosts:
        if host.model is not None:
            most[host.model.name] = max(most.get(host.model.name, 0), len(host.gpus))
    if not most:
        raise InputError(
            "no host has a GPU on its PCI bus",
            where="--hosts",
            hint="`lspci -nn | grep -i nvidia` on a node shows what its bus has; name at least one GPU node",
        )
    pools = pool_names(most)
    return {pools[model]: (CATALOG[model], most[model]) for model in most}


def pool_names(models: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """A pool's name for each model: h100 for H100-SXM5-80GB, and the whole name where two begin alike."""
    short = [model.lower().split("-")[0] for model in models]
    return {
        model: begin if short.count(begin) == 1 else model.lower() for model, begin in zip(models, short, strict=True)
    }


def describe(
    hosts: Sequence[HostFacts], *, name: str, team: str, login: Login, control_plane: Sequence[str]
) -> Description:
    """The description of a new site.

    Args:
        hosts: machines without faults.
        name: the cluster's.
        team: one to begin with; it owns every GPU.
        login: how they are reached.
        control_plane: of `control_plane_of`.
    """
    check_names(name, team)
    called = inventory_names(hosts)
    pools = pools_of(hosts)
    pool_of = {model.name: pool for pool, (model, _) in pools.items()}
    members: dict[str, list[HostFacts]] = {pool: [] for pool in pools}
    for host in hosts:
        if host.model is not None:
            members[pool_of[host.model.name]].append(host)
    quota = {pool: sum(len(host.gpus) for host in members[pool]) for pool in pools}
    network, remarks = _network(hosts)
    files = {
        "hosts.yml": _hosts_file(called, pools, members, hosts, login=login, control_plane=control_plane),
        "group_vars/all/cluster.yml": cluster_file(
            name, ["rack"], {pool: pool_fields(model, gpus) for pool, (model, gpus) in pools.items()}, {COHORT: {}}
        ),
        "group_vars/all/teams.yml": teams_file({team: {"namespaces": [team], "quota": quota, "cohort": COHORT}}),
        "group_vars/all/site.yml": site_file(name, network),
    }
    return Description(files, tuple(remarks))


def pool_fields(model: GpuModel, gpus: int, **more: Any) -> dict[str, Any]:
    """What is written of a pool; the resource only where the model's is not the usual one."""
    usual = Pool.model_fields["resource"].default
    fields: dict[str, Any] = {"model": model.name, "gpus_per_node": gpus, "use": "training", "engine": "kueue", **more}
    return fields | ({"resource": model.resource} if model.resource != usual and "resource" not in more else {})


def _hosts_file(
    called: Mapping[str, str],
    pools: Mapping[str, tuple[GpuModel, int]],
    members: Mapping[str, Sequence[HostFacts]],
    hosts: Sequence[HostFacts],
    *,
    login: Login,
    control_plane: Sequence[str],
) -> str:
    shared: dict[str, Any] = {"ansible_user": login.user}
    shared |= {"ansible_become": True} if login.user != "root" else {}
    shared |= {"ansible_port": login.port} if login.port != 22 else {}
    shared |= {"ansible_ssh_private_key_file": login.key} if login.key else {}
    if login.options:
        shared["ansible_ssh_common_args"] = " ".join(f"-o {option}" for option in login.options)
    lines = [
        "# Where things stand; nothing else. Written by `myriad init`: yours from here on.",
        f"# No probe sees a rack: `{UNKNOWN}` is one place for all, until you write the real ones.",
        "all:",
        f"  vars: {flow(shared)}",
        "  hosts:",
    ]
    for host in hosts:
        user = login.users.get(host.asked, login.user)
        own: dict[str, Any] = {"ansible_host": address_of(host)}
        own |= {"ansible_user": user, "ansible_become": user != "root"} if user != login.user else {}
        lines.append(f"    {called[host.asked]}: {flow(own)}")
    lines += ["  children:", "    control_plane:", "      hosts:"]
    lines += [f"        {called[asked]}: {{}}" for asked in control_plane]
    lines += ["    gpu_nodes:", "      children:"]
    for pool, (_, most) in pools.items():
        lines += [f"        {pool_group(pool)}:", "          hosts:"]
        for host in members[pool]:
            own = {"myriad_location": UNKNOWN}
            own |= {"myriad_gpus": len(host.gpus)} if len(host.gpus) < most else {}
            lines.append(f"            {called[host.asked]}: {flow(own)}")
    return "\n".join(lines) + "\n"


def cluster_file(
    name: str,
    levels: Sequence[str],
    pools: Mapping[str, Any],
    cohorts: Mapping[str, Any],
    *,
    priorities: Mapping[str, int] = DEFAULT_PRIORITIES,
    more: Sequence[str] = (),
) -> str:
    """group_vars/all/cluster.yml. `more` are lines that follow the pools."""
    lines = [
        f"myriad_cluster: {flow({'name': name, 'topology_levels': list(levels)})}",
        "myriad_pools:",
        *(f"  {pool}: {flow(fields)}" for pool, fields in pools.items()),
        *more,
        f"myriad_priorities: {flow(dict(priorities))}",
        f"myriad_preemption: {flow({'grace_s': 300, 'min_run_s': 1800, 'checkpoint_max_age_s': 3600})}",
        f"myriad_cohorts: {flow(dict(cohorts))}",
    ]
    return "\n".join(lines) + "\n"


def teams_file(teams: Mapping[str, Mapping[str, Any]]) -> str:
    """group_vars/all/teams.yml."""
    lines = [
        "# quota: GPUs that a team owns, by pool. Teams of one cohort lend each other what they do not use.",
        "myriad_teams:" if teams else "myriad_teams: {}",
    ]
    for team, fields in teams.items():
        lines.append(f"  {team}:")
        lines += [f"    {key}: {flow(value)}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def site_file(name: str, network: str, *, kubeconfig: str = "") -> str:
    """group_vars/all/site.yml: what only the site can know.

    Args:
        name: the cluster's.
        network: of the nodes' addresses; empty where it is not known.
        kubeconfig: the file that is there already; empty names one that a site run makes.
    """
    folder = "{{ lookup('ansible.builtin.env', 'HOME') }}"
    lines = [
        "# What only the site can know: where things are kept, what the vendor publishes. The rest follows.",
        "",
        f"# Every artifact of the lock in one folder: `myriad bundle build --out {BUNDLE}` makes it.",
        f'site_bundle: "{folder}/{BUNDLE.removeprefix("~/")}"',
        "",
        "# The file on this controller in which the cluster's admin kubeconfig is kept.",
        f'site_kubeconfig: "{kubeconfig or f"{folder}/.config/myriad/{name}.kubeconfig"}"',
        "",
        "# The network of the nodes' addresses: reached without a proxy, and never overlapped by pods.",
        f"site_node_network: {network}" if network else "# site_node_network: 10.0.0.0/24",
        "",
        "# The device plugin of the GPUs' vendor, by digest. No digest is shipped: record the one that you trust.",
        "# site_device_plugin_image: registry.example.com/nvidia/k8s-device-plugin@sha256:...",
    ]
    return "\n".join(lines) + "\n"


def address_of(host: HostFacts) -> str:
    """How other machines reach the host: the address that was asked for, or that of the interface that answered."""
    try:
        return str(ipaddress.ip_address(host.asked))
    except ValueError:
        return host.address or host.asked


def address_fault(host: HostFacts) -> str:
    """Why the host's address is of no use to other machines; empty where it is."""
    try:
        is_loopback = ipaddress.ip_address(address_of(host)).is_loopback
    except ValueError:
        return "no address of it is known, only a name: give --hosts its IP address"
    return (
        "answers at a loopback address, where no other machine reaches it: give --hosts its address in the network"
        if is_loopback
        else ""
    )


def _network(hosts: Sequence[HostFacts]) -> tuple[str, list[str]]:
    found = sorted({host.network for host in hosts})
    if len(found) == 1 and found[0]:
        return found[0], []
    seen = ", ".join(network for network in found if network) or "none that could be read"
    return "", [
        f"the hosts do not stand in one network ({seen}): set site_node_network in site.yml; where they are routed, "
        "another pod_network_mode too (roles/pod_network/README.md)"
    ]


def flow(value: Any) -> str:
    """A value as one line of YAML, as people write it."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").strip()

"""Reads from the API what the plan of an upgrade follows from: a handful of lists, whatever the number of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from myriad.errors import MyriadError
from myriad.kube.client import Api, Json
from myriad.kube.drain import DrainOptions, Gang, pod_view, preflight
from myriad.kube.kinds import DAEMON_SETS, DEPLOYMENTS, NODES, PODS
from myriad.stack.compat import check, parse_version
from myriad.stack.lock import load_rules
from myriad.upgrade.plan import BY, Limits, Look, Plan, Target, cluster_changes, plan

_OURS = "myriad.dev/set"


def planned(
    api: Api,
    looks: Mapping[str, Look],
    target: Target,
    images: Mapping[str, str],
    limits: Limits,
    *,
    control_plane_hosts: Sequence[str],
    unmanaged: bool,
) -> Plan:
    """The plan for the cluster as it is. Touches nothing: what would not leave a node is asked by dry runs.

    Args:
        api: the cluster.
        looks: what each host told.
        target: what the lock wants.
        images: repository to digest, as the bundle has them.
        limits: caps and the policy for jobs.
        control_plane_hosts: hosts of the control plane, in the order of the inventory.
        unmanaged: evict pods that nothing would make again, too.
    """
    nodes = {node["metadata"]["name"]: node for node in api.list(NODES)[0]}
    pods = api.list(PODS)[0]
    programs = [item for kind in (DEPLOYMENTS, DAEMON_SETS) for item in api.list(kind, labels=_OURS)[0]]
    findings = [str(found) for found in check(dict(target.versions), load_rules()) if found.level == "error"]
    arguments = {
        "api_server": _api_server(api, pods),
        "control_plane_hosts": control_plane_hosts,
        "cluster": cluster_changes(target, programs, images),
        "findings": findings,
    }
    jobs = jobs_of(pods)
    first = plan(looks, nodes, target, jobs, limits, **arguments)  # type: ignore[arg-type]
    going = [*first.control_plane, *first.order]
    if not going:
        return first
    # Without job pods that would be left anyway, and in one question for all nodes.
    foreseen = preflight(api, going, DrainOptions(by=BY, unmanaged=unmanaged))
    blockers: dict[str, list[str]] = defaultdict(list)
    for blocker in foreseen.blockers:
        blockers[blocker.node].append(f"{blocker.pod} would not leave: {blocker.reason}")
    if not blockers:
        return first
    told = {name: "; ".join(reasons[:3]) for name, reasons in blockers.items()}
    return plan(looks, nodes, target, jobs, limits, blockers=told, **arguments)  # type: ignore[arg-type]


def _api_server(api: Api, pods: Iterable[Json]) -> str:
    """The oldest API server that runs; with several control planes they differ while an upgrade is under way."""
    tags = []
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if labels.get("component") == "kube-apiserver" and pod["metadata"].get("namespace") == "kube-system":
            image = str(pod["spec"]["containers"][0].get("image") or "").partition("@")[0]
            # An image by digest alone, or by a tag of somebody's own, says nothing; then the server that answers does.
            with suppress(ValueError):
                tag = image.rpartition("/")[2].rpartition(":")[2].removeprefix("v")
                tags.append((parse_version(tag), tag))
    if tags:
        return min(tags)[1]
    return str(api.get_raw("/version").get("gitVersion") or "").removeprefix("v")


def jobs_of(pods: Iterable[Json]) -> list[Gang]:
    """Jobs whose running pods hold GPUs, on one node or several. Pods of Deployments are not counted: they move."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for body in pods:
        pod = pod_view(body)
        if pod.gang and pod.node and not pod.has_ended and _holds_gpus(body):
            found[pod.gang][pod.node] += 1
    return [Gang(name, dict(sorted(on.items()))) for name, on in sorted(found.items())]


def _holds_gpus(pod: Json) -> bool:
    for container in (pod.get("spec") or {}).get("containers") or []:
        limits = (container.get("resources") or {}).get("limits") or {}
        if any("gpu" in name.partition("/")[2] or "/mig-" in name for name in limits):
            return True
    return False


def refused(found: Plan) -> MyriadError:
    """The error of a plan that may not begin."""
    return MyriadError(
        "the upgrade may not begin, nothing was touched:\n  " + "\n  ".join(found.refusals),
        hint="`myriad upgrade plan` shows all of it; correct what is named and run the same command again",
    )

"""What a team's people may do: roles and bindings, network policies, defaults of containers, for each namespace.

People are known by the groups that the cluster's login gives them (OIDC, or the organisation of a client certificate).
A team without `groups` and `users` has the group `myriad:TEAM`, which `myriad access grant` writes into certificates.
"""

from __future__ import annotations

from typing import Any

from myriad.fleet import model
from myriad.fleet.labels import TEAM_LABEL

ACCESS_LABELS = {"app.kubernetes.io/managed-by": "myriad", "app.kubernetes.io/component": "team-access"}
RBAC = "rbac.authorization.k8s.io"
MEMBER = "myriad-team-member"
READER = "myriad-cluster-reader"
SYSTEM = "myriad-system"
EXPOSED_LABEL = "myriad.dev/exposed"
"""On a pod whose port others than its team may reach: "true"."""

_READ = ["get", "list", "watch"]
_WRITE = [*_READ, "create", "update", "patch", "delete", "deletecollection"]


def access_objects(fleet: model.Fleet) -> list[dict[str, Any]]:
    """Every object of access, in apply order; none where the site has no teams."""
    if not fleet.teams:
        return []
    made = [_member_role(), _reader_role(), *_system_access(fleet)]
    for name, team in sorted(fleet.teams.items()):
        for namespace in sorted(set(team.namespaces)):
            made += [
                _binding(f"{RBAC}/v1", "RoleBinding", "myriad-team", MEMBER, subjects(name, team), namespace=namespace),
                _same_team(name, namespace),
                _exposed(namespace),
                _defaults(namespace),
            ]
    return made


def team_group(team: str) -> str:
    """Group of a team that names none."""
    return f"myriad:{team}"


def subjects(name: str, team: model.Team) -> list[dict[str, str]]:
    """A team's people as subjects of a binding."""
    groups = team.groups or (() if team.users else (team_group(name),))
    return [
        {"apiGroup": RBAC, "kind": kind, "name": subject}
        for kind, names in (("Group", groups), ("User", team.users))
        for subject in dict.fromkeys(names)
    ]


def _member_role() -> dict[str, Any]:
    """In the team's own namespaces: submit, look into and end jobs and services, and see why they wait.

    Not among it: queues, limits, network policies and roles, which are the site's; what runs as root on a node."""
    return _object(f"{RBAC}/v1", "ClusterRole", MEMBER) | {
        "rules": [
            _rule("batch", ["jobs", "cronjobs"], _WRITE),
            _rule("kubeflow.org", ["pytorchjobs"], _WRITE),
            _rule("apps", ["deployments", "deployments/scale", "statefulsets", "statefulsets/scale"], _WRITE),
            _rule("apps", ["replicasets", "controllerrevisions"], _READ),
            _rule("autoscaling", ["horizontalpodautoscalers"], _WRITE),
            _rule("policy", ["poddisruptionbudgets"], _WRITE),
            _rule("", ["pods", "services", "configmaps", "secrets", "persistentvolumeclaims"], _WRITE),
            _rule("", ["pods/exec", "pods/attach", "pods/portforward"], ["get", "create"]),
            _rule("", ["pods/log", "pods/status", "events", "endpoints", "serviceaccounts"], _READ),
            _rule("", ["resourcequotas", "limitranges"], _READ),
            _rule("events.k8s.io", ["events"], _READ),
            _rule("discovery.k8s.io", ["endpointslices"], _READ),
            _rule("networking.k8s.io", ["networkpolicies"], _READ),
            _rule("kueue.x-k8s.io", ["workloads", "workloads/status", "localqueues", "localqueues/status"], _READ),
            _rule("visibility.kueue.x-k8s.io", ["localqueues/pendingworkloads"], _READ),
            _rule("scheduling.volcano.sh", ["podgroups"], _READ),
        ]
    }


def _reader_role() -> dict[str, Any]:
    """Of the whole cluster: what `myriad why`, `queue` and `quota` need to name numbers. No other team's jobs."""
    kueue = ["clusterqueues", "cohorts", "resourceflavors", "topologies", "admissionchecks", "workloadpriorityclasses"]
    return _object(f"{RBAC}/v1", "ClusterRole", READER) | {
        "rules": [
            _rule("", ["nodes", "namespaces"], _READ),
            _rule("kueue.x-k8s.io", kueue, _READ),
            _rule("scheduling.k8s.io", ["priorityclasses"], _READ),
            _rule("storage.k8s.io", ["storageclasses"], _READ),
            _rule("myriad.dev", ["nodeportraits"], _READ),
            _rule("admissionregistration.k8s.io", ["validatingadmissionpolicies"], _READ),
        ]
    }


def _system_access(fleet: model.Fleet) -> list[dict[str, Any]]:
    """Bindings of everybody: the reader's role, and in Myriad's own namespace the page and the rules of the site."""
    everybody = list(
        {
            (subject["kind"], subject["name"]): subject
            for name, team in sorted(fleet.teams.items())
            for subject in subjects(name, team)
        }.values()
    )
    rules = [
        _rule(
            "", ["services/proxy"], ["get"], ["myriad-scheduler", "myriad-scheduler:http", "http:myriad-scheduler:http"]
        ),
        _rule("", ["configmaps"], ["get"], ["myriad-policy"]),
    ]
    return [
        _binding(f"{RBAC}/v1", "ClusterRoleBinding", READER, READER, everybody),
        _object(f"{RBAC}/v1", "Role", "myriad-members", namespace=SYSTEM) | {"rules": rules},
        _binding(
            f"{RBAC}/v1", "RoleBinding", "myriad-members", "myriad-members", everybody, namespace=SYSTEM, role="Role"
        ),
    ]


def _same_team(team: str, namespace: str) -> dict[str, Any]:
    """Into the namespace come only pods of the same team; out of it everything (registries, storage, data)."""
    return _object("networking.k8s.io/v1", "NetworkPolicy", "myriad-team", namespace=namespace) | {
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {TEAM_LABEL: team}}}]}],
        }
    }


def _exposed(namespace: str) -> dict[str, Any]:
    return _object("networking.k8s.io/v1", "NetworkPolicy", "myriad-exposed", namespace=namespace) | {
        "spec": {
            "podSelector": {"matchLabels": {EXPOSED_LABEL: "true"}},
            "policyTypes": ["Ingress"],
            "ingress": [{}],
        }
    }


def _defaults(namespace: str) -> dict[str, Any]:
    """Requests of a container that names none: a pod that counts as nothing is placed where nothing is left."""
    requests = {"cpu": "100m", "memory": "256Mi"}
    return _object("v1", "LimitRange", "myriad-defaults", namespace=namespace) | {
        "spec": {"limits": [{"type": "Container", "defaultRequest": requests}]}
    }


def _rule(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> dict[str, Any]:
    rule: dict[str, Any] = {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
    return rule | ({"resourceNames": names} if names else {})


def _binding(
    api_version: str,
    kind: str,
    name: str,
    role_name: str,
    people: list[dict[str, str]],
    *,
    namespace: str | None = None,
    role: str = "ClusterRole",
) -> dict[str, Any]:
    return _object(api_version, kind, name, namespace=namespace) | {
        "roleRef": {"apiGroup": RBAC, "kind": role, "name": role_name},
        "subjects": [dict(one) for one in people],
    }


def _object(api_version: str, kind: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": dict(ACCESS_LABELS)}
    if namespace is not None:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}

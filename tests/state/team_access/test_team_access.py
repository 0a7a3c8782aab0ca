"""People of a team may work in its namespaces, and in no other."""

from typing import Any

import pytest

testinfra_hosts = ["ansible://control_plane"]

NOBODY_MAY = [("create", "clusterqueues.kueue.x-k8s.io"), ("delete", "nodes"), ("get", "secrets -n kube-system")]


def may(cluster: Any, group: str, question: str) -> bool:
    """The API server's own answer for somebody of a group."""
    done = cluster.run(f"auth can-i {question} --as=somebody --as-group={group} --as-group=system:authenticated")
    return str(done.stdout).strip() == "yes"


def groups(variables: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Team to one of its groups and its namespaces."""
    return {
        team: ((spec.get("groups") or [f"myriad:{team}"])[0], spec["namespaces"])
        for team, spec in variables["myriad_teams"].items()
    }


@pytest.mark.parametrize(
    "question",
    [
        "create jobs.batch",
        "get pods --subresource=log",
        "list workloads.kueue.x-k8s.io",
        "list localqueues.kueue.x-k8s.io",
        "list events",
    ],
)
def test_a_team_works_in_its_own_namespaces_only(cluster: Any, variables: dict[str, Any], question: str) -> None:
    for team, (group, namespaces) in groups(variables).items():
        for other, (_, others) in groups(variables).items():
            for namespace in others:
                assert may(cluster, group, f"{question} -n {namespace}") == (namespace in namespaces), (team, other)


def test_a_team_sees_why_its_jobs_wait(cluster: Any, variables: dict[str, Any]) -> None:
    for group, _ in groups(variables).values():
        assert may(cluster, group, "list clusterqueues.kueue.x-k8s.io")
        assert may(cluster, group, "list nodes")


@pytest.mark.parametrize(("verb", "what"), NOBODY_MAY)
def test_a_team_does_not_rule_the_cluster(cluster: Any, variables: dict[str, Any], verb: str, what: str) -> None:
    for group, _ in groups(variables).values():
        assert not may(cluster, group, f"{verb} {what}")


def test_namespaces_are_closed_to_other_teams_and_to_privileged_pods(cluster: Any, variables: dict[str, Any]) -> None:
    for _, namespaces in groups(variables).values():
        for namespace in namespaces:
            labels = cluster.get("namespace", namespace)["metadata"]["labels"]
            assert labels["pod-security.kubernetes.io/enforce"] in ("baseline", "restricted", "privileged")
            cluster.get("networkpolicy", "myriad-team", namespace)
            cluster.get("limitrange", "myriad-defaults", namespace)

"""The API server treats requests of the extension as a class of their own: counted, bounded, its Lease apart.

Asked of a real API server by the headers of its answers and by its metrics, not by reading the objects.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import apiserver
import httpx
import pytest
from apiserver import ControlPlane, until
from extension import ACCOUNT, rendered

pytestmark = [apiserver.AT_HAND]

FLOW_CONTROL = ("PriorityLevelConfiguration", "FlowSchema")
STRANGER = "mallory"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    work = tmp_path_factory.mktemp("flow") / "plane"
    with apiserver.api_server(work, users=[ACCOUNT, STRANGER], namespaces=["myriad-system"]) as running:
        objects = rendered()
        running.apply([o for o in objects if "Role" in o["kind"] or o["kind"] in ("ServiceAccount", *FLOW_CONTROL)])
        yield running


def ask(plane: ControlPlane, user: str, path: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {plane.tokens[user]}"}
    return httpx.get(plane.url + path, headers=headers, verify=ssl.create_default_context(cafile=plane.ca), timeout=30)


def schema_of(plane: ControlPlane, user: str, path: str) -> str:
    """The flow schema that a request was classed by: the server names it by its uid."""
    uid = ask(plane, user, path).headers["X-Kubernetes-PF-FlowSchema-UID"]
    for body in apiserver.as_json(plane.kubectl("get", "flowschemas", "-o", "json"))["items"]:
        if body["metadata"]["uid"] == uid:
            return str(body["metadata"]["name"])
    raise AssertionError(f"no flow schema has the uid {uid}")


LEASE = "/apis/coordination.k8s.io/v1/namespaces/myriad-system/leases/myriad-scheduler"


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("/api/v1/nodes", "myriad-scheduler"),
        ("/api/v1/pods?limit=1", "myriad-scheduler"),
        ("/apis/batch/v1/jobs", "myriad-scheduler"),
        (LEASE, "myriad-scheduler-lease"),
    ],
)
def test_requests_of_the_extension_are_a_class_of_their_own(plane: ControlPlane, path: str, schema: str) -> None:
    until(lambda: schema_of(plane, ACCOUNT, path) == schema, what=f"{path} is classed as {schema}")
    assert not schema_of(plane, STRANGER, path).startswith("myriad"), "somebody else's requests are not touched"


def seats(plane: ControlPlane, metric: str) -> dict[str, float]:
    """A metric of the API server by priority level."""
    found = {}
    for line in ask(plane, "admin", "/metrics").text.splitlines():
        if line.startswith(f"apiserver_flowcontrol_{metric}{{"):
            labels, value = line.partition("{")[2].rsplit("} ", 1)
            found[dict(part.split("=") for part in labels.split(","))["priority_level"].strip('"')] = float(value)
    return found


def test_it_has_its_seats_and_borrows_none(plane: ControlPlane) -> None:
    nominal: dict[str, Any] = until(
        lambda: (s := seats(plane, "nominal_limit_seats")) and "myriad-scheduler" in s and s, what="it has seats"
    )
    own = nominal["myriad-scheduler"]
    assert 0.05 < own / sum(nominal.values()) < 0.10
    assert seats(plane, "upper_limit_seats")["myriad-scheduler"] == own
    assert seats(plane, "upper_limit_seats")["workload-low"] > nominal["workload-low"], "others may borrow"
    assert seats(plane, "lower_limit_seats")["myriad-scheduler"] < own, "what it does not use, others may"

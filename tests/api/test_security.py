"""A real API server with the files of the role: who gets in without a name, what lies in etcd, what the log tells."""

from __future__ import annotations

import base64
import importlib.util
import json
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import apiserver
import httpx
import pytest
import yaml
from apiserver import ControlPlane, until

pytestmark = [apiserver.AT_HAND]

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "roles/kubernetes_control_plane/templates/install/usr/local/lib/myriad/encryption-keys"
OWN, PKI, LOGS = "/etc/kubernetes/api-server", "/etc/kubernetes/pki", "/var/log/kubernetes"
PLANTED = "planted-0b7c1f0e"
GIVEN = {
    "kubernetes_control_plane_version": "1.35.4",
    "kubernetes_control_plane_etcd_tag": "3.6.14-0",
    "kubernetes_control_plane_coredns_tag": "v1.13.1",
}
MAPS = "/api/v1/namespaces/kube-public/configmaps"
CLUSTER_INFO = f"{MAPS}/cluster-info"


def load(name: str, path: Path) -> ModuleType:
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Guarded(ControlPlane):
    """A control plane whose API server gets further arguments."""

    arguments: tuple[str, ...] = ()

    def start(self, name: str, command: Any, env: dict[str, str] | None = None) -> None:
        super().start(name, [*command, *(self.arguments if name == "kube-apiserver" else ())], env)


@dataclass
class Site:
    """What runs, and the program of the keys with its files there."""

    plane: Guarded
    keys: ModuleType

    def anonymous(self, path: str) -> int:
        context = ssl.create_default_context(cafile=self.plane.ca)
        return httpx.get(self.plane.url + path, verify=context, timeout=30).status_code

    def etcd(self, _address: str, path: str, body: dict[str, Any] | None = None, **_more: Any) -> dict[str, Any]:
        """etcd's own gateway, as a control plane asks it; here without certificates."""
        words = [str(word) for word in self.plane.processes["etcd"].args]  # type: ignore[union-attr]
        url = next(word.split("=", 1)[1] for word in words if word.startswith("--listen-client-urls="))
        answer = httpx.post(f"{url}/v3/{path}", json=body or {}, timeout=30)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def stored(self, kind: str, name: str, namespace: str = "default") -> bytes:
        """What lies in etcd of one object."""
        key = base64.b64encode(f"/registry/{kind}/{namespace}/{name}".encode()).decode()
        (found,) = self.etcd("", "kv/range", {"key": key})["kvs"]
        return base64.b64decode(found["value"])

    def secret(self, name: str) -> None:
        self.plane.kubectl("create", "secret", "generic", name, f"--from-literal=password={PLANTED}")

    def logged(self) -> list[dict[str, Any]]:
        text = (self.plane.work / "audit/audit.log").read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    rendering = load("rendering_of_roles", ROOT / "tests/unit/roles/rendering.py")
    files = "configure/etc/kubernetes"
    said = rendering.rendered(
        tmp_path_factory.mktemp("rendered"),
        role="kubernetes_control_plane",
        inventory="lab-ha",
        templates={
            "init": f"{files}/myriad-init.yaml.j2",
            "audit-policy": f"{files}/api-server/audit-policy.yaml.j2",
            "authentication": f"{files}/api-server/authentication.yaml.j2",
        },
        given=GIVEN,
    )
    plane = Guarded(tmp_path_factory.mktemp("security") / "plane")
    (plane.work / "logs").mkdir(parents=True)
    for name in ("audit-policy", "authentication"):
        (plane.work / f"{name}.yaml").write_text(said[name])
    keys = load("encryption_keys_of_a_server", PROGRAM)
    keys.KEYS = str(plane.work / "encryption.json")
    assert keys.make() == {"changed": True}
    cluster = next(d for d in yaml.safe_load_all(said["init"]) if d["kind"] == "ClusterConfiguration")
    given = {argument["name"]: argument["value"] for argument in cluster["apiServer"]["extraArgs"]}
    for folder in (OWN, PKI, LOGS):
        given = {name: value.replace(folder, str(plane.work)) for name, value in given.items()}
    plane.arguments = tuple(f"--{name}={value}" for name, value in given.items())
    found = Site(plane, keys)
    programs = plane.work / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(apiserver.find("kubectl") or "kubectl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys.shared, "etcd", found.etcd)
        patch.setattr(keys.shared, "ADMIN", str(plane.kubeconfig))
        patch.setenv("PATH", str(programs), prepend=":")
        try:
            apiserver._start_api(plane, ["mallory"])
            until(lambda: plane.kubectl("get", "namespaces", "default", "kube-public"), "the server's own namespaces")
            yield found
        finally:
            for name in reversed(list(plane.processes)):
                plane.stop(name)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_a_probe_needs_no_name(site: Site, path: str) -> None:
    assert site.anonymous(path) == 200


@pytest.mark.parametrize("path", ["/", "/api", "/apis", "/version", "/metrics", "/openapi/v2", "/livez/etcd", MAPS])
def test_nobody_gets_further_without_a_name(site: Site, path: str) -> None:
    assert site.anonymous(path) == 401


def test_who_joins_finds_the_cluster_and_nothing_beside_it(site: Site) -> None:
    """As kubeadm sets it up: one ConfigMap that everybody may read."""
    site.plane.kubectl("-n", "kube-public", "create", "configmap", "cluster-info", "--from-literal=kubeconfig=x")
    site.plane.kubectl("-n", "kube-public", "create", "configmap", "other", "--from-literal=kubeconfig=x")
    site.plane.kubectl("-n", "kube-public", "create", "role", "info", "--verb=get", "--resource=configmaps")
    site.plane.kubectl("-n", "kube-public", "create", "rolebinding", "info", "--role=info", "--user=system:anonymous")
    until(lambda: site.anonymous(CLUSTER_INFO) == 200, "cluster-info without a name")
    assert site.anonymous(CLUSTER_INFO.replace("cluster-info", "other")) == 401


def test_a_secret_lies_in_etcd_under_the_key_and_is_read_by_name(site: Site) -> None:
    site.secret("door")
    site.plane.kubectl("create", "configmap", "door", f"--from-literal=password={PLANTED}")
    lies, (key,) = site.stored("secrets", "door"), site.keys.read()
    assert lies.startswith(f"k8s:enc:secretbox:v1:{key['name']}:".encode())
    assert PLANTED.encode() not in lies
    # The look would find it: what is no Secret lies there as it is.
    assert PLANTED.encode() in site.stored("configmaps", "door")
    read = site.plane.kubectl("get", "secret", "door", "-o", "jsonpath={.data.password}")
    assert base64.b64decode(read).decode() == PLANTED
    assert site.keys.lying() == {key["name"]: 1}


def test_who_did_what_is_logged_and_never_what_a_secret_holds(site: Site) -> None:
    site.secret("window")
    site.plane.kubectl("get", "secrets", "-o", "json")
    site.plane.kubectl("create", "clusterrole", "reads-pods", "--verb=get", "--resource=pods")

    def of(resource: str, verb: str) -> list[dict[str, Any]]:
        return [
            e for e in site.logged() if (e.get("objectRef") or {}).get("resource") == resource and e["verb"] == verb
        ]

    until(lambda: of("clusterroles", "create"), "the last of it in the log")
    written = [event for event in of("secrets", "create") if event["objectRef"].get("name") == "window"]
    assert [event["level"] for event in written] == ["Metadata"] and written[0]["user"]["username"] == "admin"
    assert {event["level"] for event in of("secrets", "list") + of("secrets", "get")} <= {"Metadata"}
    assert of("secrets", "list")
    role = next(e for e in of("clusterroles", "create") if e["objectRef"].get("name") == "reads-pods")
    assert role["requestObject"]["rules"][0]["resources"] == ["pods"]
    text = (site.plane.work / "audit/audit.log").read_text()
    assert PLANTED not in text and base64.b64encode(PLANTED.encode()).decode() not in text
    assert not of("leases", "update") and not [e for e in site.logged() if e["requestURI"].startswith("/readyz")]
    assert (site.plane.work / "audit/audit.log").stat().st_mode & 0o077 == 0


def test_nobody_sees_a_profile(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.plane.tokens['admin']}"}
    context = ssl.create_default_context(cafile=site.plane.ca)
    assert httpx.get(f"{site.plane.url}/debug/pprof/", headers=headers, verify=context).status_code == 404


def test_kubeadm_takes_what_is_rendered(tmp_path: Path) -> None:
    """Every field by its name and type, for the first control plane and for one that joins with keys it was lent."""
    kubeadm = apiserver.find("kubeadm")
    assert kubeadm, "the bundle has no kubeadm"
    invitation = {"token": "abcdef.0123456789abcdef", "hash": f"sha256:{'0' * 64}", "key": "0" * 64, "sealed": ["AAA="]}
    said = load("rendering_for_kubeadm", ROOT / "tests/unit/roles/rendering.py").rendered(
        tmp_path,
        role="kubernetes_control_plane",
        inventory="lab-ha",
        templates={"init": "configure/etc/kubernetes/myriad-init.yaml.j2", "join": "kubeadm-join.yaml.j2"},
        given={
            **GIVEN,
            "kubernetes_control_plane_advertise_address": "10.0.0.1",
            "__kubernetes_control_plane_invitation": {"answer": invitation},
        },
    )
    for name in ("init", "join"):
        (tmp_path / name).write_text(said[name])
        command = [kubeadm, "config", "validate", "--config", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), f"{name}: {done.stderr}"


@pytest.mark.slow
def test_the_key_is_changed_while_the_server_runs(site: Site) -> None:
    """As docs/security.md tells it; the server reads the file anew within a minute or two."""
    site.secret("old")
    (first,) = site.keys.read()
    site.keys.add()
    site.keys.promote()
    second = site.keys.read()[0]

    def rewritten() -> bool:
        try:
            return bool(site.keys.rewrite()["written"])
        except site.keys.shared.Refused as refused:
            raise AssertionError(str(refused)) from refused

    until(rewritten, "every Secret under the new key", timeout_s=240.0)
    assert set(site.keys.lying()) == {second["name"]} and first["name"] not in site.keys.lying()
    assert site.keys.retire() == {"changed": True}
    read = site.plane.kubectl("get", "secret", "old", "-o", "jsonpath={.data.password}")
    assert base64.b64decode(read).decode() == PLANTED

"""A real control plane as plain processes on loopback: etcd, kube-apiserver, controller manager, scheduler and Kueue,
with `kubelets.py` for the nodes. No containers, no root; up in about 15 s. It proves what the extension does against
the real Kueue with its real webhooks, where a whole lab would take minutes.

The programs come from the newest bundle of the cache that has them (`make lab` makes one); $MYRIAD_BIN names a folder
with others, $MYRIAD_KUEUE_CHART another chart.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from myriad.errors import MyriadError
from myriad.stack.bundle import Bundle

Json = dict[str, Any]

PATIENCE = float(os.environ.get("MYRIAD_TEST_PATIENCE", "1"))
"""How many times longer than usual everything may take: for a machine that is busy with something else."""

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kueue", "kubectl", "helm")
START_S = 300.0
"""The longest wait for a program to answer: seconds on a machine of its own, minutes beside a lab and its builds."""
_IN_BUNDLE = {"kueue": "kueue-manager", "chart": "kueue-chart"}


@cache
def newest_bundle() -> Bundle | None:
    """The newest bundle that holds all programs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wanted = [_IN_BUNDLE.get(name, name) for name in (*PROGRAMS, "chart")]
    for folder in sorted((home / "myriad" / "bundles").glob("*"), key=lambda f: f.stat().st_mtime, reverse=True):
        with contextlib.suppress(MyriadError):
            bundle = Bundle.load(folder)
            if all(bundle.has_file(name) and bundle.file_path(name).exists() for name in wanted):
                return bundle
    return None


def find(program: str) -> str | None:
    """A program's path."""
    folder = os.environ.get("MYRIAD_BIN")
    if folder and (Path(folder) / program).exists():
        return str(Path(folder) / program)
    bundle = newest_bundle()
    if bundle is not None:
        return str(bundle.file_path(_IN_BUNDLE.get(program, program)))
    return shutil.which(program)


def find_chart() -> str | None:
    """Kueue's chart: a folder or an archive."""
    if os.environ.get("MYRIAD_KUEUE_CHART"):
        return os.environ["MYRIAD_KUEUE_CHART"]
    bundle = newest_bundle()
    return str(bundle.file_path("kueue-chart")) if bundle is not None else None


def missing() -> list[str]:
    """What is not there; empty = the control plane can be started."""
    return [p for p in PROGRAMS if find(p) is None] + ([] if find_chart() else ["Kueue's chart"])


#: Mark of the tests that need it.
AT_HAND = pytest.mark.skipif(
    bool(missing()), reason=f"the control plane of plain processes needs {', '.join(missing())}"
)


@dataclass
class ControlPlane:
    """A running control plane.

    Attributes:
        work: its folder; logs are in `logs/`.
        kubeconfig: admin credentials.
        url, ca, token: the same for other users of the API.
    """

    work: Path
    url: str = ""
    ca: Path = Path()
    tokens: dict[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        """Admin credentials."""
        return self.work / "admin.conf"

    def start(self, name: str, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        """Start a program; its output goes to logs/NAME.log."""
        with (self.work / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                list(command), stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
            )

    def stop(self, name: str, *, kill: bool = False) -> None:
        """Stop a program that was started."""
        process = self.processes.pop(name)
        process.kill() if kill else process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Run kubectl as admin."""
        done = subprocess.run(
            [find("kubectl") or "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def apply(self, objects: Sequence[Json]) -> None:
        """Apply objects server-side as admin."""
        text = "---\n".join(yaml.safe_dump(o) for o in objects)
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def wait_for_nodes(self, timeout_s: float = 60.0) -> None:
        """Until all nodes are Ready."""
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", f"--timeout={timeout_s * PATIENCE:.0f}s")

    def kubeconfig_for(self, user: str) -> Path:
        """Credentials of another user; which exist is said at `control_plane(users=...)`."""
        path = self.work / f"{user.replace(':', '_')}.conf"
        path.write_text(yaml.safe_dump(_kubeconfig(self.url, self.ca, self.tokens[user])))
        return path


@contextlib.contextmanager
def control_plane(
    work: Path,
    *,
    users: Sequence[str] = (),
    run_s: float = 0.0,
    kubelets: bool = True,
    qps: int = 0,
    integrations: Sequence[str] = ("batch/job",),
    values: Json | None = None,
) -> Iterator[ControlPlane]:
    """Start everything, and stop it at the end.

    Args:
        work: an empty folder.
        users: further users with a token each; what they may do is up to RBAC.
        run_s: pods of Jobs end well after this time, give or take half (0: they run until they are deleted).
        kubelets: play the kubelets of all nodes; False where somebody else does.
        qps: requests a second that Kueue, the controller manager and the scheduler may send, twice that in a burst;
            0: their own defaults.
        integrations: what Kueue manages.
        values: for Kueue's chart; the chart's own where not given. What is said above goes over them.
    """
    with api_server(work, users=users) as plane:
        _install_kueue(plane, qps, integrations, values)
        _start_controllers(plane, qps)
        if kubelets:
            _start_kubelets(plane, run_s)
        yield plane


@contextlib.contextmanager
def api_server(
    work: Path, *, users: Sequence[str] = (), namespaces: Sequence[str] = (), kubelets: bool = False
) -> Iterator[ControlPlane]:
    """Start etcd and an API server alone, and stop at the end whatever was started on them.

    Args:
        work: a folder that is empty or not there.
        users: further users with a token each; what they may do is up to RBAC.
        namespaces: namespaces to make.
        kubelets: start and end the pods of fake nodes too; without a scheduler, so pods name their node.
    """
    plane = ControlPlane(work)
    (work / "logs").mkdir(parents=True)
    try:
        _start_api(plane, users)
        if kubelets:
            _start_kubelets(plane, 0.0)
        if namespaces:
            plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n}} for n in namespaces])
        yield plane
    finally:
        for name in reversed(list(plane.processes)):
            plane.stop(name)


def _program(name: str) -> str:
    path = find(name)
    assert path, f"{name} is not there"
    return path


def _start_api(plane: ControlPlane, users: Sequence[str]) -> None:
    work = plane.work
    etcd_port, peer_port, api_port = _free_port(), _free_port(), _free_port()
    plane.start(
        "etcd",
        [
            _program("etcd"),
            f"--data-dir={work}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",
        ],
    )
    key, certificate = _certificate(work / "pki")
    plane.ca = certificate
    plane.url = f"https://127.0.0.1:{api_port}"
    plane.tokens = {name: secrets.token_hex(16) for name in ("admin", *users)}
    (work / "tokens.csv").write_text(
        "".join(
            f'{token},{user},{user},"{"system:masters" if user == "admin" else "system:authenticated"}"\n'
            for user, token in plane.tokens.items()
        )
    )
    plane.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(plane.url, certificate, plane.tokens["admin"])))
    plane.start(
        "kube-apiserver",
        [
            _program("kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={api_port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={work}/tokens.csv",
            f"--client-ca-file={certificate}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            # Pods of Jobs need no service account here, and nobody would make one.
            "--disable-admission-plugins=ServiceAccount",
        ],
    )
    _wait_ready(plane, f"{plane.url}/readyz", START_S)


def _install_kueue(plane: ControlPlane, qps: int, integrations: Sequence[str], values: Json | None = None) -> None:
    chart = find_chart()
    assert chart, "Kueue's chart is not there"
    rendered = subprocess.run(
        [_program("helm"), "template", "kueue", chart, "--namespace", "kueue-system", "--include-crds", "--values=-"],
        input=yaml.safe_dump(values or {}).encode(),
        capture_output=True,
        check=True,
        env={**os.environ, "HOME": str(plane.work)},
    ).stdout
    port = _free_port()
    ca_bundle = base64.b64encode(plane.ca.read_bytes()).decode()
    objects: list[Json] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}]
    config: Json = {}
    for body in yaml.safe_load_all(rendered):
        if not body or body["kind"] in ("APIService", "Deployment", "Service", "Secret"):
            continue
        if body["kind"] == "ConfigMap":
            config = yaml.safe_load(body["data"]["controller_manager_config.yaml"])
            continue
        hooks = list(body.get("webhooks") or [])
        if body["kind"] == "CustomResourceDefinition" and "conversion" in body["spec"]:
            hooks.append(body["spec"]["conversion"]["webhook"])
        for hook in hooks:
            # No Service leads to a process on loopback: the API server calls its address.
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"] |= {"url": f"https://127.0.0.1:{port}{path}", "caBundle": ca_bundle}
        objects.append(body)
    # Kueue's certificate rotation accepts what it finds valid, here and in the folder of its webhook server.
    pki = plane.work / "pki"
    shutil.copy(pki / "tls.crt", pki / "ca.crt")
    certificate = {"ca.crt": "tls.crt", "ca.key": "tls.key", "tls.crt": "tls.crt", "tls.key": "tls.key"}
    objects.append(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "kueue-webhook-server-cert", "namespace": "kueue-system"},
            "data": {k: base64.b64encode((pki / v).read_bytes()).decode() for k, v in certificate.items()},
        }
    )
    plane.apply(objects)
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={60 * PATIENCE:.0f}s")
    config["leaderElection"] = {"leaderElect": False}
    config["integrations"] = {"frameworks": list(integrations)}
    config["metrics"] = {"bindAddress": "0"}
    config["health"] = {"healthProbeBindAddress": f"127.0.0.1:{_free_port()}"}
    config["webhook"] = {"port": port, "host": "127.0.0.1", "certDir": str(plane.work / "pki")}
    if qps:
        config["clientConnection"] = {"qps": qps, "burst": 2 * qps}
    (plane.work / "kueue.yaml").write_text(yaml.safe_dump(config))
    plane.start(
        "kueue",
        [
            _program("kueue"),
            f"--config={plane.work}/kueue.yaml",
            f"--kubeconfig={plane.kubeconfig}",
            "--feature-gates=VisibilityOnDemand=false",
        ],
    )
    _wait_port(port, START_S)


def _start_controllers(plane: ControlPlane, qps: int) -> None:
    key = plane.work / "pki" / "tls.key"
    pace = [f"--kube-api-qps={qps}", f"--kube-api-burst={2 * qps}"] if qps else []
    plane.start(
        "kube-controller-manager",
        [
            _program("kube-controller-manager"),
            f"--kubeconfig={plane.kubeconfig}",
            "--leader-elect=false",
            f"--service-account-private-key-file={key}",
            "--controllers=job-controller,deployment-controller,replicaset-controller,namespace-controller,"
            "garbage-collector-controller,node-lifecycle-controller,taint-eviction-controller,"
            "pod-garbage-collector-controller,resourcequota-controller",
            f"--secure-port={_free_port()}",
            "--node-monitor-grace-period=120s",
            *pace,
        ],
    )
    plane.start(
        "kube-scheduler",
        [
            _program("kube-scheduler"),
            f"--kubeconfig={plane.kubeconfig}",
            "--leader-elect=false",
            f"--secure-port={_free_port()}",
            *pace,
        ],
    )


def _start_kubelets(plane: ControlPlane, run_s: float) -> None:
    plane.start(
        "kubelets",
        [sys.executable, str(Path(__file__).with_name("kubelets.py")), str(plane.kubeconfig), str(run_s)],
        {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")},
    )


def _kubeconfig(url: str, ca: Path, token: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(ca)}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for loopback, its own CA."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    folder.mkdir()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "myriad-test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    x509.DNSName("kueue-webhook-service.kueue-system.svc"),
                    x509.DNSName("kueue-ca"),
                    x509.IPAddress(ip_address("127.0.0.1")),
                ]
            ),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(x509.KeyUsage(True, False, True, False, False, True, True, False, False), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return folder / "tls.key", folder / "tls.crt"


def until(check: Callable[[], Any], what: str = "", *, timeout_s: float = 30.0) -> Any:
    """Poll until the check gives something true, and give that back; its last failure is the error."""
    timeout_s *= PATIENCE
    end = time.monotonic() + timeout_s
    failure: Exception | None = None
    while time.monotonic() < end:
        try:
            if found := check():
                return found
            failure = None
        except (AssertionError, httpx.HTTPError) as error:
            failure = error
        time.sleep(0.2)
    raise AssertionError(f"not within {timeout_s} s: {what or check.__doc__ or check}") from failure


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _wait_port(port: int, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s * PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise AssertionError(f"nothing listens on port {port} after {timeout_s} s")


def _wait_ready(plane: ControlPlane, url: str, timeout_s: float) -> None:
    context = ssl.create_default_context(cafile=str(plane.ca))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {plane.tokens['admin']}"})
    end = time.monotonic() + timeout_s * PATIENCE
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(request, context=context, timeout=2) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.2)
    log = (plane.work / "logs" / "kube-apiserver.log").read_text()[-2000:]
    raise AssertionError(f"{url} is not ready after {timeout_s} s:\n{log}")


# Objects that tests use


def fake_node(name: str, path: Sequence[str], *, gpus: int = 8, pool: str = "h100") -> Json:
    """A fake GPU node at room, block, rack."""
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    labels = {
        "kubernetes.io/hostname": name,
        "myriad.dev/pool": pool,
        "myriad.dev/gpu-model": "H100-SXM5-80GB",
        "myriad.dev/gpu-expected": str(gpus),
        **{f"myriad.dev/{level}": ".".join(path[: i + 1]) for i, level in enumerate(("room", "block", "rack"))},
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def queue_objects(*, gpus: int, team: str = "vision", pool: str = "h100", cohort: str = "") -> list[Json]:
    """Topology, flavor, a team's ClusterQueue, namespace and LocalQueue, as the policy renders them."""
    kueue = "kueue.x-k8s.io/v1beta2"
    levels = ["myriad.dev/room", "myriad.dev/block", "myriad.dev/rack", "kubernetes.io/hostname"]
    quota = {"cpu": 10000, "memory": "100Ti", "nvidia.com/gpu": gpus}
    return [
        {
            "apiVersion": kueue,
            "kind": "Topology",
            "metadata": {"name": "myriad"},
            "spec": {"levels": [{"nodeLabel": label} for label in levels]},
        },
        {
            "apiVersion": kueue,
            "kind": "ResourceFlavor",
            "metadata": {"name": pool},
            "spec": {"nodeLabels": {"myriad.dev/pool": pool}, "topologyName": "myriad"},
        },
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": team, "labels": {"myriad.dev/team": team}},
        },
        {
            "apiVersion": kueue,
            "kind": "ClusterQueue",
            "metadata": {
                "name": f"{team}-{pool}",
                "labels": {"myriad.dev/team": team, "myriad.dev/pool": pool},
            },
            "spec": {
                **({"cohortName": cohort} if cohort else {}),
                "namespaceSelector": {"matchLabels": {"myriad.dev/team": team}},
                "resourceGroups": [
                    {
                        "coveredResources": list(quota),
                        "flavors": [
                            {"name": pool, "resources": [{"name": k, "nominalQuota": v} for k, v in quota.items()]}
                        ],
                    }
                ],
            },
        },
        {
            "apiVersion": kueue,
            "kind": "LocalQueue",
            "metadata": {"name": pool, "namespace": team},
            "spec": {"clusterQueue": f"{team}-{pool}"},
        },
    ]


def check_object() -> Json:
    """The AdmissionCheck, as the role scheduler_extension renders it."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": "myriad"},
        "spec": {"controllerName": "myriad.dev/scheduler"},
    }


def gang_job(
    name: str, *, pods: int, gpus: int, namespace: str = "vision", pool: str = "h100", **pod_spec: Any
) -> Json:
    """A gang as a batch Job; further pod fields by keyword."""
    template_metadata = pod_spec.pop("metadata", {})
    requests = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": pool}},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 4,
            "template": {
                "metadata": template_metadata,
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "containers": [
                        {
                            "name": "main",
                            "image": "registry.invalid/gang-check:1",
                            "resources": {"requests": requests, "limits": requests},
                        }
                    ],
                    **pod_spec,
                },
            },
        },
    }


def as_json(text: str) -> Any:
    """Parsed kubectl output."""
    return json.loads(text)

"""The hand-made floor: bare container nodes to a Ready Kubernetes cluster by direct commands, one after the other.

A yardstick for site.yml: the same node image, the same binaries and images of the same bundle, nothing that checks,
compares, records or could run twice. What a person with shell access and no patience would type.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker

from myriad.errors import MyriadError
from myriad.lab.nodes import container_options, ensure_network, exec_text
from myriad.lab.state import LabState
from myriad.lab.topology import LabNode
from myriad.stack.bundle import Bundle, ImageEntry

REGISTRY = "floor.local"
PODS = "10.243"
BINARIES = ("kubelet", "kubeadm", "kubectl", "containerd", "containerd-shim-runc-v2", "ctr", "crictl", "runc")
CNI = ("bridge", "host-local", "loopback", "portmap")
WORKER_IMAGES = ("kube-proxy", "coredns", "pause")
CONTROL_IMAGES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd")
IGNORED = "SystemVerification,Swap,NumCPU,Mem,FileContent--proc-sys-net-bridge-bridge-nf-call-iptables"
TIMEOUT_S = 300.0

_NODE = r"""set -e
mkdir -p /opt/cni/bin /etc/cni/net.d /etc/containerd /etc/kubernetes
cp /floor/bin/* /usr/local/bin/
cp /floor/cni/* /opt/cni/bin/
cat > /etc/cni/net.d/10-floor.conflist <<C
{"cniVersion":"1.0.0","name":"floor","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"@PODS@.@NUMBER@.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
C
cat > /etc/containerd/config.toml <<C
version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "@SANDBOX@"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = @RESTRICT@
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "@RUNC@"
C
cat > /etc/systemd/system/containerd.service <<C
[Service]
Type=notify
ExecStart=/usr/local/bin/containerd
Delegate=yes
KillMode=process
[Install]
WantedBy=multi-user.target
C
cat > /etc/systemd/system/kubelet.service <<'C'
[Unit]
After=containerd.service
[Service]
Environment=BOOT=/etc/kubernetes/bootstrap-kubelet.conf CONF=/etc/kubernetes/kubelet.conf
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/local/bin/kubelet --bootstrap-kubeconfig=${BOOT} --kubeconfig=${CONF} \
  --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
C
systemctl daemon-reload
systemctl enable -q --now containerd
systemctl enable -q kubelet
until ctr version >/dev/null 2>&1; do sleep 0.1; done
ctr -n k8s.io images import /floor/@ARCHIVE@.tar >/dev/null
"""


class Floor:
    """One run of the floor on nodes of its own.

    Args:
        client: the engine.
        bundle: where binaries and images come from.
        state: name, network, subnet and detected facts of the floor's own network.
        nodes: the first one becomes the control plane.
        image: the node image.
        scratch: an empty folder.
        report: told the name and seconds of each phase.
    """

    def __init__(
        self,
        client: docker.DockerClient,
        bundle: Bundle,
        state: LabState,
        nodes: Sequence[LabNode],
        *,
        image: str,
        scratch: Path,
        report: Callable[[str, float], None],
    ) -> None:
        self.client, self.bundle, self.state = client, bundle, state
        self.nodes, self.image, self.scratch, self.report = list(nodes), image, scratch, report
        self.containers: list[Any] = []

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.report(name, time.monotonic() - started)

    def prepare(self) -> None:
        """Lay out binaries and image archives; not counted, as the site run's bundle is ready too."""
        for folder, names in ((self.scratch / "bin", BINARIES), (self.scratch / "cni", CNI)):
            folder.mkdir(parents=True)
            for name in names:
                shutil.copyfile(self.bundle.file_path(name), folder / name)
                (folder / name).chmod(0o755)
        images = {entry.repo: entry for entry in self.bundle.manifest.images}
        self._archive("worker", [images[name] for name in WORKER_IMAGES])
        self._archive("control", [images[name] for name in (*WORKER_IMAGES, *CONTROL_IMAGES)])
        files = Path(__file__).resolve().parents[1] / "lab" / "files"
        for name in ("entry", "runc-lab"):
            shutil.copy(files / name, self.scratch / name)
        for number, node in enumerate(self.nodes):
            script = _NODE.replace("@PODS@", PODS).replace("@NUMBER@", str(number + 10))
            script = script.replace("@SANDBOX@", f"{REGISTRY}/{images['pause'].ref}")
            script = script.replace("@RESTRICT@", str(not self.state.detected.cap_sys_resource).lower())
            runc = "/usr/local/bin/runc" if self.state.detected.cap_sys_resource else "/floor/runc-lab"
            script = script.replace("@RUNC@", runc).replace("@ARCHIVE@", "worker" if number else "control")
            (self.scratch / f"node-{node.name}").write_text(script)
        (self.scratch / "init.yaml").write_text(self._init(images))
        (self.scratch / "join.yaml").write_text(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovery:\n  bootstrapToken:\n"
            f"    {{token: abcdef.0123456789abcdef, apiServerEndpoint: '{self.nodes[0].address}:6443', "
            "unsafeSkipCAVerification: true}\n"
        )
        (self.scratch / "resolv.conf").write_text("nameserver 192.0.2.53\n")

    def _archive(self, name: str, images: Sequence[ImageEntry]) -> None:
        """An OCI archive of these images, under the floor's registry name."""
        blobs: dict[str, int] = {}
        manifests = []
        for image in images:
            plain = image.digest.removeprefix("sha256:")
            blobs[plain] = image.size
            blobs.update({blob.sha256: blob.size for blob in image.blobs})
            manifests.append(
                {
                    "mediaType": image.media_type,
                    "digest": image.digest,
                    "size": image.size,
                    "annotations": {"io.containerd.image.name": f"{REGISTRY}/{image.ref}"},
                }
            )
        with tarfile.open(self.scratch / f"{name}.tar", "w") as tar:

            def add(path: str, content: bytes) -> None:
                info = tarfile.TarInfo(path)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))

            add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            add("index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())
            for digest in blobs:
                tar.add(self.bundle.path(digest), f"blobs/sha256/{digest}")

    def _init(self, images: dict[str, ImageEntry]) -> str:
        address = self.nodes[0].address
        return f"""apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens: [{{token: abcdef.0123456789abcdef}}]
localAPIEndpoint: {{advertiseAddress: {address}}}
timeouts: {{kubeletHealthCheck: 60s}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {images["kube-apiserver"].tag}
imageRepository: {REGISTRY}
dns: {{imageRepository: {REGISTRY}, imageTag: {images["coredns"].tag}}}
etcd: {{local: {{imageRepository: {REGISTRY}, imageTag: {images["etcd"].tag}}}}}
networking: {{podSubnet: {PODS}.0.0/16}}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
resolvConf: /floor/resolv.conf
featureGates: {{KubeletInUserNamespace: true}}
evictionHard: {{memory.available: 100Mi, nodefs.available: 1Gi, imagefs.available: 1Gi}}
imageGCHighThresholdPercent: 99
imageGCLowThresholdPercent: 98
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
conntrack: {{maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}}
"""

    def run(self) -> float:
        """Bring the cluster up. Returns the seconds from bare nodes to all Ready and all pods Running.

        Raises:
            MyriadError: when a command fails, with its last lines.
        """
        started = time.monotonic()
        ensure_network(self.client, self.state)
        with self._phase("nodes"):
            for node in self.nodes:
                options = container_options(
                    node, self.state.detected, lab=self.state.name, image=self.image, network=self.state.network
                )
                options["entrypoint"] = ["/floor/entry"]
                options["volumes"] = [f"{self.scratch}:/floor:ro", *options["volumes"]]
                container = self.client.containers.create(**options)
                container.start()
                self.containers.append(container)
            for container in self.containers:
                self._until(lambda: exec_text(container, "systemctl is-active -q dbus")[0] == 0, "systemd runs")  # noqa: B023
        with self._phase("runtime and images"):
            for node, container in zip(self.nodes, self.containers, strict=True):
                self._exec(container, f"sh /floor/node-{node.name}")
        first = self.containers[0]
        with self._phase("kubeadm init"):
            self._exec(first, f"kubeadm init --config /floor/init.yaml --ignore-preflight-errors={IGNORED}")
        with self._phase("joins and routes"):
            for container in self.containers[1:]:
                self._exec(container, f"kubeadm join --config /floor/join.yaml --ignore-preflight-errors={IGNORED}")
            for here, container in enumerate(self.containers):
                for there, node in enumerate(self.nodes):
                    if here != there:
                        self._exec(container, f"ip route replace {PODS}.{there + 10}.0/24 via {node.address}")
        with self._phase("all Ready, all pods Running"):
            kubectl = "kubectl --kubeconfig /etc/kubernetes/admin.conf"
            ready = f"{kubectl} get nodes --no-headers | grep -c ' Ready '"
            pods = f"{kubectl} get pods -A --no-headers | grep -vc Running || true"
            self._until(
                lambda: (
                    exec_text(first, ready)[1].strip() == str(len(self.nodes))
                    and exec_text(first, pods)[1].strip() == "0"
                ),
                "all nodes Ready and all pods Running",
            )
        return time.monotonic() - started

    def _exec(self, container: Any, script: str) -> None:
        code, output = exec_text(container, script)
        if code != 0:
            tail = "\n  ".join(output.strip().splitlines()[-8:])
            raise MyriadError(f"`{script}` failed:\n  {tail}", where=f"floor, {container.name}")

    def _until(self, true: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + TIMEOUT_S
        while not true():
            if time.monotonic() > until:
                raise MyriadError(f"this has not come true after {TIMEOUT_S:.0f} s: {what}", where="floor")
            time.sleep(0.3)


def floor_name(lab: str) -> str:
    """Name of the floor's containers and network: short, and never a lab's."""
    return "myriad-floor-" + hashlib.sha256(lab.encode()).hexdigest()[:6]

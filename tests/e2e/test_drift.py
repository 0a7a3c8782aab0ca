"""`myriad drift` on the lab: empty after a site run, and every kind of change made by hand is found and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import CLONE, Lab, PlaybookRun

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.engine]

MYRIAD = str(Path(sys.executable).with_name("myriad"))
QUOTA = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
SYSTEM = "myriad-system"


@dataclass(frozen=True)
class ByHand:
    """One kind of change.

    Attributes:
        name: what is changed.
        where: the host, or `cluster`, where the command is kubectl's.
        command: that changes it.
        kind, item: the difference that has to be found; `item` is a part of its own.
        undo: what a site run does not take back.
    """

    name: str
    where: str
    command: str
    kind: str
    item: str
    undo: str = ""


KUBELET = "/etc/systemd/system/kubelet.service"
DROP_IN = f"{KUBELET}.d/90-mine.conf"
CONFIG = "/var/lib/kubelet/config.yaml"
MANIFESTS = "/etc/kubernetes/manifests"
SCHEDULER = "/etc/kubernetes/manifests/kube-scheduler.yaml"
ONE = f'[{{"op":"replace","path":"{QUOTA}","value":"1"}}]'
BY_HAND = [
    ByHand("a file's content", "gpu1", "echo '# mine' >> /etc/crictl.yaml", "file", "/etc/crictl.yaml"),
    ByHand("a file's mode", "gpu1", f"chmod 777 {KUBELET}", "file", KUBELET),
    ByHand("a file's owner", "gpu1", "chown nobody /etc/crictl.yaml", "file", "/etc/crictl.yaml"),
    ByHand("a file that is gone", "gpu2", "rm /usr/local/lib/myriad/node-reset", "file", "node-reset"),
    ByHand("a program", "gpu2", "cp /usr/local/bin/crictl /tmp/crictl; printf x >> /tmp/crictl; "
           "mv /tmp/crictl /usr/local/bin/crictl", "artifact", "/usr/local/bin/crictl"),
    ByHand("a unit at boot", "gpu2", "systemctl disable --quiet kubelet", "unit", "kubelet.service"),
    ByHand("a drop-in of a unit", "gpu1",
           f"mkdir -p {KUBELET}.d && printf '[Service]\\nNice=5\\n' > {DROP_IN} && systemctl daemon-reload",
           "unit", "kubelet.service", f"rm -r {KUBELET}.d && systemctl daemon-reload"),
    ByHand("the runtime's configuration", "gpu1", "printf 'version = 3\\n' > /etc/containerd/conf.d/90-mine.toml",
           "file", "90-mine.toml", "rm /etc/containerd/conf.d/90-mine.toml"),
    ByHand("the kubelet's configuration", "gpu2", f"cp {CONFIG} /root/kept && echo 'maxPods: 7' >> {CONFIG}", "made",
           CONFIG, f"mv /root/kept {CONFIG}"),
    ByHand("a manifest of the control plane", "cp1", f"cp {SCHEDULER} /root/kept && echo '# mine' >> {SCHEDULER}",
           "made", SCHEDULER, f"mv /root/kept {SCHEDULER}"),
    ByHand("a static pod", "gpu2", f"mkdir -p {MANIFESTS}; touch {MANIFESTS}/mine.yaml", "static_pod", "mine.yaml",
           f"rm {MANIFESTS}/mine.yaml"),
    ByHand("a network", "gpu1", "printf '{}' > /etc/cni/net.d/99-mine.conflist", "file", "99-mine.conflist",
           "rm /etc/cni/net.d/99-mine.conflist"),
    ByHand("a setting", "gpu1", "sysctl -qw net.ipv4.ip_forward=0", "setting", "net.ipv4.ip_forward"),
    ByHand("a setting of the next boot", "gpu2", "echo net.ipv4.ip_forward=0 > /etc/sysctl.d/99-zz.conf", "setting",
           "net.ipv4.ip_forward", "rm /etc/sysctl.d/99-zz.conf"),
    ByHand("an image of a node", "gpu2", "crictl rmi registry.myriad.internal/myriad/gang-check:0.1.0", "image",
           "gang-check"),
    ByHand("a quota", "cluster", f"patch clusterqueue vision-h100 --type=json -p {ONE}", "object",
           "ClusterQueue vision-h100"),
    ByHand("a queue that is gone", "cluster", "delete localqueue -n speech --all", "object", "LocalQueue speech/"),
    ByHand("a program of the cluster", "cluster", f"set image -n {SYSTEM} deployment/myriad-scheduler *=other:1",
           "object", "Deployment myriad-system/myriad-scheduler"),
    ByHand("a variable of a program", "cluster", f"set env -n {SYSTEM} daemonset/myriad-agent MINE=1", "field", "MINE",
           f"set env -n {SYSTEM} daemonset/myriad-agent MINE-"),
    ByHand("a right", "cluster", "delete clusterrolebinding myriad-scheduler", "object", "myriad-scheduler"),
    ByHand("a label of a node", "cluster", "label node gpu1 myriad.dev/rack=mine --overwrite", "object", "dev/rack"),
    ByHand("a priority", "cluster", "create priorityclass mine --value=1000000", "stray", "PriorityClass mine",
           "delete priorityclass mine"),
    ByHand("a queue of one's own", "cluster", "create -f -", "stray", "ClusterQueue mine", "delete clusterqueue mine"),
    ByHand("kubeadm's objects", "cluster", "label -n kube-system configmap/kube-proxy mine=1", "field", "kube-proxy",
           "label -n kube-system configmap/kube-proxy mine-"),
    ByHand("a node that is no host", "cluster", "create -f -", "node", "stranger", "delete node stranger"),
]  # fmt: skip
STDIN = {
    "ClusterQueue mine": {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "mine"},
                          "spec": {"namespaceSelector": {}}},
    "stranger": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "stranger"}},
}  # fmt: skip


def drift() -> tuple[int, dict[str, Any]]:
    """Exit code and document of one look."""
    done = subprocess.run(
        [MYRIAD, "drift", "--json"], cwd=CLONE, env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stdout[-2000:] + done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


def hand(lab: Lab, where: str, command: str, item: str = "") -> None:
    """Do one thing by hand."""
    if where == "cluster":
        lab.kubectl(*command.split(), text=json.dumps(STDIN[item]) if item in STDIN else None)
    else:
        lab.ssh(where, command)


def test_every_kind_of_change_by_hand_is_found_and_what_a_site_run_made_it_takes_back(
    lab: Lab, playbook: PlaybookRun
) -> None:
    code, report = drift()
    assert (code, report["differences"], report["failures"]) == (0, [], {}), report
    assert report["nodes"] == 4
    print(json.dumps({"drift_s": report["seconds"]}))
    for change in BY_HAND:
        hand(lab, change.where, change.command, change.item)
    lab.kubectl("cordon", "gpu2")
    try:
        code, report = drift()
    finally:
        lab.kubectl("uncordon", "gpu2")
        for change in BY_HAND:
            if change.undo:
                hand(lab, change.where, change.undo)
    assert code == 5, report
    found = [(entry["where"], entry["kind"], entry["item"]) for entry in report["differences"]]
    for entry in report["differences"]:
        print(json.dumps(entry))
    missed = [
        change.name
        for change in BY_HAND
        if not any(at == change.where and kind == change.kind and change.item in item for at, kind, item in found)
    ]
    assert not missed, (missed, found)
    assert any("gpu2 was cordoned by hand" in note for note in report["notes"]), report["notes"]
    print(json.dumps({"kinds": len(BY_HAND), "differences": len(found), "drift_s": report["seconds"]}))
    again = playbook("site")
    assert again.code == 0, again.output[-3000:]
    code, report = drift()
    assert (code, report["differences"]) == (0, []), report

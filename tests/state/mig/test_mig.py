"""GPUs cut by MIG as the unit of the node knows it, now and at the next boot."""

from __future__ import annotations

import json
import re
from typing import Any

from testinfra.host import Host

testinfra_hosts = ["ansible://gpu_nodes"]

PROGRAM = "/usr/local/lib/myriad/mig"
LAYOUT = "/var/lib/myriad/mig/layout.json"


def layout(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.file(LAYOUT).content_string)
    return found


def test_every_slice_of_the_layout_is_there_and_no_other(host: Host) -> None:
    wanted = {int(index): sorted(profiles) for index, profiles in layout(host)["layouts"].items()}
    assert wanted, "a layout without a GPU proves nothing"
    found: dict[int, list[str]] = {}
    current = -1
    for line in host.check_output("%s -L", layout(host)["nvidia_smi"]).splitlines():
        if gpu := re.match(r"GPU (\d+):", line):
            current = int(gpu.group(1))
            found[current] = []
        elif slice_ := re.match(r"\s+MIG (\S+)\s+Device", line):
            found[current].append(slice_.group(1))
    assert {index: sorted(found[index]) for index in wanted} == wanted


def test_the_node_itself_finds_nothing_that_differs(host: Host) -> None:
    done = host.run(f"{PROGRAM} check")
    assert (done.rc, done.stdout) == (0, "")


def test_it_is_applied_at_boot_before_the_kubelet(host: Host) -> None:
    assert host.service("myriad-mig").is_enabled
    before = host.check_output("systemctl show --property=Before --value myriad-mig.service").split()
    assert "kubelet.service" in before
    assert host.run("systemd-analyze verify myriad-mig.service").rc == 0

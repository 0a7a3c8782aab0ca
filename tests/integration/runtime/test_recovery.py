"""A runtime that does not come up again, and a node that was switched off and on."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]

DROP_IN = "/etc/containerd/conf.d/99-vendor.toml"
RUNTIME = "plugins.'io.containerd.cri.v1.runtime'"


def test_a2_a_start_that_fails_is_taken_back_and_the_runtime_runs_again(tidy: Any) -> None:
    """It parses, but the runtime that it makes the default does not exist: the CRI plugin does not load."""
    tidy.write(DROP_IN, f'version = 4\n[{RUNTIME}.containerd]\n  default_runtime_name = "nowhere"\n')
    done = tidy.play("container_runtime", container_runtime_start_timeout_s=5)
    assert done.code != 0
    assert f"{DROP_IN} is new" in done.message
    assert "default_runtime_name from 'runc' to 'nowhere'" in done.message
    assert "Those files are back and containerd.service runs with them." in done.message
    assert "RuntimeReady" in tidy.sh("/usr/local/bin/crictl info")
    assert tidy.sh(f"ls {DROP_IN}.refused"), "a stranger's file is moved aside, not lost"
    tidy.unchanged("container_runtime")
    tidy.sh(f"rm {DROP_IN}.refused")


def test_d7_the_devices_are_described_anew_at_boot_before_the_kubelet(gpu_node: Any) -> None:
    unit = gpu_node.sh("systemctl show -p Before,After,UnitFileState myriad-gpu-cdi.service")
    assert "kubelet.service" in unit and "UnitFileState=enabled" in unit
    gpu_node.sh("rm /etc/cdi/nvidia.yaml")
    gpu_node.container.restart(timeout=20)
    for _attempt in range(60):
        if gpu_node.sh("test -e /etc/cdi/nvidia.yaml && /usr/local/bin/crictl version && echo up", check=False):
            break
        time.sleep(0.5)
    pod = gpu_node.gpu_pod("after-boot", "nvidia.com/gpu=1")
    assert gpu_node.in_container(pod, "test -c /dev/nvidia1 && echo there") == "there\n"
    gpu_node.remove_pods()
    gpu_node.unchanged("container_runtime", "gpu_toolkit")

"""The container runtime on a node with the real containerd: who may change its configuration, and when it restarts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]


def test_t01_base_toolkit_base_again_and_a_gpu_pod_restarted(gpu_node: Any) -> None:
    """A1, A2, A3, A9: the base role run again leaves the runtime alone, and a GPU pod starts afterwards too."""
    before, started = gpu_node.dump(), gpu_node.started_at()
    pod = gpu_node.gpu_pod("t01-before")
    assert gpu_node.in_container(pod, "test -c /dev/nvidia0 && test -c /dev/nvidiactl && echo there") == "there\n"
    gpu_node.unchanged("container_runtime")
    gpu_node.unchanged("container_runtime", "gpu_toolkit")
    assert gpu_node.dump() == before
    assert gpu_node.started_at() == started
    gpu_node.remove_pods()
    pod = gpu_node.gpu_pod("t01-after")
    assert gpu_node.in_container(pod, "test -c /dev/nvidia0 && echo there") == "there\n"
    gpu_node.remove_pods()


DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
RUNTIME = "plugins.'io.containerd.cri.v1.runtime'"
#: What a vendor's tool leaves in conf.d: a runtime of its own.
VENDOR = f"""version = 4

[{RUNTIME}.containerd.runtimes.vendor]
  runtime_type = "io.containerd.runc.v2"
  [{RUNTIME}.containerd.runtimes.vendor.options]
    BinaryName = "/usr/local/bin/runc"
"""


@pytest.fixture
def restored(tidy: Any) -> Iterator[Any]:
    """The node, brought back to what the roles want of it."""
    yield tidy
    tidy.remove_pods()
    tidy.sh("rm -f /etc/containerd/conf.d/99-* /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
    tidy.converge("container_runtime", "gpu_toolkit", container_runtime_restart="now")


def test_t04_a_drop_in_that_changes_the_network_folders_is_refused_with_key_and_values(tidy: Any) -> None:
    """A8: the generated file of a toolkit changes CNI's folders besides its own keys."""
    started = tidy.started_at()
    tidy.write(DROP_IN, VENDOR + f'\n[{RUNTIME}.cni]\n  bin_dirs = ["/usr/local/nvidia/cni"]\n')
    done = tidy.play("container_runtime")
    assert done.code != 0
    assert (
        f"{DROP_IN} changes {RUNTIME}.cni.bin_dirs from ['/opt/cni/bin'] to ['/usr/local/nvidia/cni'], "
        "which is not its to change."
    ) in done.message
    assert "vendor" not in done.message, "its own runtime is its own"
    assert "container_runtime_drop_in_keys" in done.message
    assert tidy.started_at() == started


def test_t04_the_toolkit_itself_changes_only_its_own_keys(tidy: Any) -> None:
    started, before = tidy.started_at(), tidy.sh("ls /etc/containerd/conf.d")
    done = tidy.play(
        "gpu_toolkit",
        gpu_toolkit_runtime_enabled=True,
        gpu_toolkit_runtime_default=True,
        gpu_toolkit_own_keys=[f"{RUNTIME}.containerd.runtimes.nvidia.*"],
    )
    assert done.code != 0
    assert f"changes {RUNTIME}.containerd.default_runtime_name from 'runc' to 'nvidia'" in done.message
    assert tidy.sh("ls /etc/containerd/conf.d") == before, "nothing landed"
    assert tidy.started_at() == started


def test_a2_a_drop_in_that_does_not_parse_is_named_and_the_runtime_runs_on(tidy: Any) -> None:
    started = tidy.started_at()
    tidy.write(DROP_IN, f'version = 4\n[{RUNTIME}]\n  enable_cdi = "yes"\n')
    done = tidy.play("container_runtime", container_runtime_max_concurrent_downloads=9)
    assert done.code != 0
    assert "EnableCDI" in done.message, "the key, as containerd names it"
    assert f"Without {DROP_IN} it takes the rest, so that file is at fault." in done.message
    assert "max_concurrent_downloads = 9" not in tidy.sh("cat /etc/containerd/config.toml")
    assert tidy.started_at() == started


def test_a1_a6_the_runtime_nvidia_stays_and_has_the_version_that_this_containerd_reads(restored: Any) -> None:
    """One restart for the drop-in and none for the owner's role run again; no migration; a newer version is refused."""
    restored.converge("gpu_toolkit", gpu_toolkit_runtime_enabled=True)
    assert f"[{RUNTIME}.containerd.runtimes.nvidia]" in restored.dump()
    started = restored.started_at()
    restored.unchanged("container_runtime")
    assert restored.started_at() == started
    heads = restored.sh("grep -h ^version /etc/containerd/config.toml /etc/containerd/conf.d/50-myriad-nvidia.toml")
    assert heads == "version = 4\nversion = 4\n"
    assert "migrated" not in restored.sh("/usr/local/bin/containerd config dump 2>&1 >/dev/null")
    restored.write(DROP_IN, VENDOR.replace("version = 4", "version = 5"))
    done = restored.play("container_runtime")
    assert "drop-in config version 5 higher than root config version 4" in done.message
    assert f"Without {DROP_IN} it takes the rest" in done.message


def test_a9_a_comment_restarts_nothing_and_a_key_restarts_once(restored: Any) -> None:
    restored.write(DROP_IN, VENDOR)
    started = restored.started_at()
    assert restored.converge("container_runtime").changed == 1
    after = restored.started_at()
    assert after != started
    restored.write(DROP_IN, "# A word.\n" + VENDOR)
    restored.unchanged("container_runtime")
    assert restored.started_at() == after


def test_d4_no_restart_under_a_pod_with_gpus_and_the_sentence_names_it(restored: Any) -> None:
    pod = restored.gpu_pod("bert-0")
    restored.holds_gpus("bert-0", "ended-long-ago")
    started = restored.started_at()
    wanted = {"container_runtime_max_concurrent_downloads": 7}
    done = restored.play("container_runtime", **wanted)
    assert done.code != 0
    assert "vision/bert-0 (1 nvidia.com/gpu)" in done.message
    assert "ended-long-ago" not in done.message, "only pods that run count"
    assert "max_concurrent_downloads from 6 to 7" in done.message
    assert "kubectl drain" in done.message and "--limit" in done.message
    assert restored.started_at() == started
    left = restored.converge("container_runtime", container_runtime_restart="never", **wanted)
    assert (left.changed, restored.started_at()) == (0, started)
    assert restored.converge("container_runtime", container_runtime_restart="now", **wanted).changed == 1
    assert restored.started_at() != started
    assert restored.in_container(pod, "test -c /dev/nvidia0 && echo there") == "there\n", "the pod ran on"


def test_a11_systemd_does_not_reload_under_a_pod_that_would_lose_its_devices(restored: Any) -> None:
    restored.gpu_pod("legacy-0")
    proxy = {"container_runtime_proxy": {"http_proxy": "http://proxy.test:3128"}, "container_runtime_restart": "now"}
    restored.holds_gpus("legacy-0", cdi=False)
    drop_ins = "systemctl show -p DropInPaths --value containerd.service"
    done = restored.play("container_runtime", **proxy)
    assert done.code != 0
    assert "daemon-reload" in done.message and "vision/legacy-0 (1 nvidia.com/gpu)" in done.message
    assert restored.sh(drop_ins) == "\n", "systemd was not told"
    restored.holds_gpus("legacy-0", cdi=True)
    restored.converge("container_runtime", **proxy)
    assert restored.sh(drop_ins) == "/etc/systemd/system/containerd.service.d/50-myriad-proxy.conf\n"

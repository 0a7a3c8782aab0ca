"""Filters of plugins/filter/stack.py: short forms that become what modules and Kubernetes take."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.myriad.gpu.plugins.filter import stack

ARTIFACTS = {"kubelet": {"sha256": "ab" * 32}, "kubeadm": {"sha256": "cd" * 32}}
IMAGES = {
    "pause": {"ref": "pause:3.10.1", "digest": "sha256:aa"},
    "myriad/gang-check": {"ref": "myriad/gang-check:0.1.0", "digest": "sha256:bb"},
}


def test_artifact_items_name_where_each_file_goes() -> None:
    assert stack.artifact_items(ARTIFACTS, {"kubelet": "/usr/local/bin/kubelet"}) == [
        {"name": "kubelet", "sha256": "ab" * 32, "path": "/usr/local/bin/kubelet", "mode": "0755"}
    ]
    with pytest.raises(AnsibleFilterError, match="the bundle has no ctr; `myriad bundle verify` names"):
        stack.artifact_items(ARTIFACTS, {"ctr": "/usr/local/bin/ctr"})


def test_a_file_of_the_bundle_lies_under_its_digest() -> None:
    assert stack.bundle_path(ARTIFACTS, "kubelet", "/srv/b") == f"/srv/b/sha256/ab/{'ab' * 32}"
    with pytest.raises(AnsibleFilterError, match="/srv/b has no helm"):
        stack.bundle_path(ARTIFACTS, "helm", "/srv/b")


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("a.b/c:NoSchedule", {"key": "a.b/c", "effect": "NoSchedule"}),
        ("a=b:NoExecute", {"key": "a", "value": "b", "effect": "NoExecute"}),
    ],
)
def test_a_taint_in_its_short_form(text: str, taint: dict[str, str]) -> None:
    assert stack.taints([text]) == [taint]


@pytest.mark.parametrize("text", ["a", "a=b", "a:Never", ":NoSchedule"])
def test_what_is_no_taint_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(AnsibleFilterError, match="write KEY=VALUE:EFFECT"):
        stack.taints([text])


def test_nodes_get_the_sandbox_and_what_their_pools_want_warm() -> None:
    wanted = {"warm": [{"image": "gang-check", "pools": ["h100-a"]}]}
    gpu = stack.warm_images(IMAGES, "r", wanted, ["gpu_nodes", "pool_h100_a"])
    assert gpu == [
        {"ref": "r/pause:3.10.1", "digest": "sha256:aa"},
        {"ref": "r/myriad/gang-check:0.1.0", "digest": "sha256:bb"},
    ]
    assert stack.warm_images(IMAGES, "r", wanted, ["control_plane"]) == gpu[:1]
    assert stack.warm_images(IMAGES, "r", {"warm": [{"image": "gang-check"}]}, ["gpu_nodes"]) == gpu
    with pytest.raises(AnsibleFilterError, match="wants pytorch, which the bundle does not hold; it has"):
        stack.warm_images(IMAGES, "r", {"warm": [{"image": "pytorch"}]}, ["gpu_nodes"])


def test_host_paths_become_mounts_and_volumes_of_one_name() -> None:
    items = [{"key": "/etc/x", "value": "ro"}, {"key": "/", "value": "rw"}]
    mounts, volumes = stack.host_path_mounts(items), stack.host_path_volumes(items)
    assert [mount["readOnly"] for mount in mounts] == [True, False]
    assert [mount["name"] for mount in mounts] == [volume["name"] for volume in volumes] == ["etc-x", "root"]


def test_the_proxy_of_the_controller_holds_for_the_nodes_but_not_inside_the_site(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mirrors.yml").write_text("{}\n")
    monkeypatch.setenv("MYRIAD_MIRRORS_FILE", str(tmp_path / "mirrors.yml"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert stack.proxy(["10.0.0.0/24"]) == {}
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "localhost, example.com")
    assert stack.proxy(["10.0.0.0/24", ""]) == {
        "https_proxy": "http://proxy:3128",
        "no_proxy": "localhost,example.com,10.0.0.0/24",
    }


def test_replicas_that_must_not_share_a_node_wait_for_a_second_one() -> None:
    soft, hard = stack.spread({"app": "x"}), stack.spread({"app": "x"}, True)
    assert [part["whenUnsatisfiable"] for part in soft + hard] == ["ScheduleAnyway", "DoNotSchedule"]
    # Without a least number of domains the first node alone would be a spread without a flaw.
    assert "minDomains" not in soft[0] and hard[0]["minDomains"] == 2
    assert all(part["labelSelector"] == {"matchLabels": {"app": "x"}} for part in soft + hard)

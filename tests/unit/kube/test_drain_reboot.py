"""Reboots: the batches, one node's way through, going on after a kill, and what asks for a reboot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.myriad.gpu.plugins.module_utils import reboot_reasons

from myriad.errors import MyriadError
from myriad.kube.client import ApiError, ClusterUnreachableError
from myriad.kube.drain import CORDON_ANNOTATION, Cordon, Gang
from myriad.kube.kinds import LEASES, NODES
from myriad.kube.reboot import (
    EXPECTED_LABEL,
    GATE_ANNOTATION,
    GATE_RUN_ANNOTATION,
    RACK_LABEL,
    REBOOT_ANNOTATION,
    Candidate,
    Mark,
    NotBackError,
    Rules,
    Waits,
    candidate,
    gate_fault,
    given_back,
    plan,
    reboot,
)

Json = dict[str, Any]
OLD, NEW = "boot-a.1", "boot-a.9"
NEEDS = ("packages ask for it",)


def hosts(*names: str, racks: int = 1000) -> list[Candidate]:
    return [Candidate(name, NEEDS, rack=f"r{k % racks}") for k, name in enumerate(names)]


# The plan


def test_one_node_of_a_rack_at_a_time() -> None:
    found = plan(hosts("gpu1", "gpu2", "gpu3", "gpu4", racks=2), [], Rules())
    assert found.batches == (("gpu1", "gpu2"), ("gpu3", "gpu4"))


def test_a_batch_has_a_size() -> None:
    assert [len(b) for b in plan(hosts(*"abcdefg"), [], Rules(batch=3)).batches] == [3, 3, 1]
    assert [len(b) for b in plan(hosts(*"abcdefg"), [], Rules(batch=0)).batches] == [7]


def test_d9_nodes_of_one_gang_go_together_even_inside_a_rack() -> None:
    gang = Gang("vision/bert", {"gpu1": 8, "gpu3": 8})
    found = plan(hosts("gpu1", "gpu2", "gpu3", racks=1), [gang], Rules())
    assert found.batches == (("gpu1", "gpu3"), ("gpu2",))
    assert "vision/bert (16 pods) runs on gpu1, gpu3: it is interrupted once, gpu1, gpu3 go together" in found.notes


def test_d9_gangs_that_overlap_make_one_batch() -> None:
    gangs = [Gang("v/a", {"gpu1": 1, "gpu2": 1}), Gang("v/b", {"gpu2": 1, "gpu3": 1})]
    assert plan(hosts("gpu1", "gpu2", "gpu3", "gpu4"), gangs, Rules(batch=2)).batches[0] == ("gpu1", "gpu2", "gpu3")


def test_d9_the_policy_may_leave_gangs_alone_or_not_look_at_them() -> None:
    gang = Gang("vision/bert", {"gpu1": 8, "gpu2": 8})
    waiting = plan(hosts("gpu1", "gpu2", "gpu3"), [gang], Rules(gangs="wait"))
    assert waiting.order == ["gpu3"]
    assert "the gang vision/bert runs on it" in waiting.left["gpu1"]
    apart = plan(hosts("gpu1", "gpu2", racks=1), [gang], Rules(gangs="apart"))
    assert apart.batches == (("gpu1",), ("gpu2",))


def test_d9_a_gang_with_nodes_that_stay_is_named() -> None:
    found = plan(hosts("gpu1"), [Gang("vision/bert", {"gpu1": 8, "gpu2": 8})], Rules())
    assert found.notes == ("vision/bert (16 pods) runs on gpu1, gpu2: it is interrupted, though gpu2 stays",)


def test_only_nodes_that_need_it_unless_forced() -> None:
    all_of_them = [*hosts("gpu1"), Candidate("gpu2"), Candidate("old", NEEDS, is_node=False)]
    found = plan(all_of_them, [], Rules())
    assert found.order == ["gpu1"]
    assert found.left == {"gpu2": "needs no reboot", "old": "the cluster has no such node"}
    assert plan(all_of_them, [], Rules(force=True)).reasons["gpu2"] == ("asked for",)


def test_the_control_plane_goes_alone_and_last_and_what_was_begun_first() -> None:
    found = plan(
        [Candidate("cp1", NEEDS, is_control_plane=True), *hosts("gpu1", "gpu2", racks=1),
         Candidate("gpu3", NEEDS, rack="r0", is_begun=True), Candidate("cp2", NEEDS, is_control_plane=True)],
        [], Rules(),
    )  # fmt: skip
    assert found.batches == (("gpu3",), ("gpu1",), ("gpu2",), ("cp1",), ("cp2",))


def test_the_plan_reads_as_sentences() -> None:
    text = plan([*hosts("gpu1", "gpu2", racks=1), Candidate("gpu3")], [], Rules()).text()
    assert text.splitlines() == [
        "reboot of 2 of 3 nodes in 2 batches",
        "  batch 1   gpu1                 packages ask for it",
        "  batch 2   gpu2                 packages ask for it",
        "  stays     gpu3: needs no reboot",
    ]
    assert plan([Candidate("gpu3")], [], Rules()).text().startswith("no node is rebooted")


def test_a_begun_reboot_is_a_reason_though_nothing_asks_for_one_any_more() -> None:
    node = {"metadata": {"name": "gpu1", "labels": {RACK_LABEL: "h.b.r"}, "annotations": {}}}
    assert candidate("gpu1", [], node) == Candidate("gpu1", (), rack="h.b.r")
    node["metadata"]["annotations"] = {REBOOT_ANNOTATION: Mark(OLD, "10:00", ("the kernel is old",), "no SSH").text()}
    found = candidate("gpu1", [], node)
    assert found.is_begun
    assert found.reasons == ("its reboot began at 10:00 and failed: no SSH", "the kernel is old")


# One node


class Host:
    """A machine: answers as told, and its reboot makes another boot after some looks."""

    def __init__(self, api: Api, *, boot: str | None = OLD, down_for: int = 3, comes_back: bool = True) -> None:
        self.now: str | None = boot
        self.api = api
        self.reboots = 0
        self._down_for, self._comes_back = down_for, comes_back
        self._looks_left = 0

    def boot(self) -> str | None:
        if self._looks_left:
            self._looks_left -= 1
            if not self._looks_left and self._comes_back:
                self.now = NEW
                self.api.comes_up()
        return self.now

    def reboot(self) -> None:
        self.reboots += 1
        self.now = None
        self._looks_left = self._down_for
        self.api.ready = False


class ControlPlane(Host):
    """One that carries the API server, which is away for some questions after the reboot."""

    def __init__(self, api: Api, away_for: int) -> None:
        super().__init__(api)
        self._away_for = away_for

    def reboot(self) -> None:
        super().reboot()
        self.api.unreachable_for = self._away_for


class Api:
    """One Node with its kubelet's Lease, and an agent that answers questions about its gate."""

    def __init__(self, *, gpus: bool = True, gate_opens: bool = True, kubelet_comes: bool = True) -> None:
        labels = {EXPECTED_LABEL: "8"} if gpus else {}
        cordon = Cordon("reboot", "10:00", "the kernel is old", False).text()
        self.node: Json = {
            "metadata": {
                "name": "gpu1", "resourceVersion": "1", "labels": labels,
                "annotations": {CORDON_ANNOTATION: cordon, GATE_ANNOTATION: '{"open":true,"run":"","checks":[]}'},
            },
            "spec": {"unschedulable": True},
        }  # fmt: skip
        self.ready, self.renewed, self.up = True, 1, True
        self._gate_opens, self._kubelet_comes = gate_opens, kubelet_comes
        self.renews = True
        self.unreachable_for = 0
        self.away: MyriadError = ClusterUnreachableError("no answer")

    def comes_up(self) -> None:
        self.up, self.ready = True, self._kubelet_comes

    def get(self, _resource: Any, name: str, **_: Any) -> Json:
        if self.unreachable_for:
            self.unreachable_for -= 1
            raise self.away
        status = "True" if self.ready else "Unknown"
        message = "" if self.ready else "Kubelet stopped posting node status."
        ready = {"type": "Ready", "status": status, "message": message}
        return json.loads(json.dumps({**self.node, "status": {"conditions": [ready]}}))

    def find(self, resource: Any, name: str, **_: Any) -> Json:
        if resource is NODES:
            return self.get(resource, name)
        assert resource is LEASES
        if self.unreachable_for:
            raise self.away
        if self.ready and self.renews:
            self.renewed += 1
        return {"spec": {"renewTime": str(self.renewed)}}

    def patch(self, _resource: Any, name: str, body: Json, **_: Any) -> Json:
        annotations = self.node["metadata"]["annotations"]
        for key, value in body["metadata"]["annotations"].items():
            annotations.pop(key, None)
            if value is not None:
                annotations[key] = value
        for key, value in body.get("spec", {}).items():
            self.node["spec"].pop(key, None)
            if value is not None:
                self.node["spec"][key] = value
        if GATE_RUN_ANNOTATION in body["metadata"]["annotations"]:
            checks = [] if self._gate_opens else [{"check": "count", "ok": False, "cause": "7 of 8 GPUs"}]
            gate = {"open": self._gate_opens, "run": annotations[GATE_RUN_ANNOTATION], "checks": checks}
            annotations[GATE_ANNOTATION] = json.dumps(gate)
        return self.node

    @property
    def annotations(self) -> Json:
        return dict(self.node["metadata"]["annotations"])


def go(api: Api, host: Host) -> bool:
    time = [0.0]

    def sleep(seconds: float) -> None:
        time[0] += seconds

    waits = Waits(reboot_s=60, ready_s=30, gate_s=30, poll_s=2)
    return reboot(api, "gpu1", host, ["the kernel is old"], waits=waits, sleep=sleep, clock=lambda: time[0])  # type: ignore[arg-type]


def test_a_node_comes_back_to_work() -> None:
    api = Api()
    host = Host(api)
    assert go(api, host) is True
    assert host.reboots == 1
    assert api.node["spec"] == {}
    assert {CORDON_ANNOTATION, REBOOT_ANNOTATION} & set(api.annotations) == set()
    assert json.loads(api.annotations[GATE_ANNOTATION])["run"].startswith("reboot-"), "judged since, not before"


def test_a_node_without_gpus_has_no_gate() -> None:
    api = Api(gpus=False)
    go(api, Host(api))
    assert GATE_RUN_ANNOTATION not in api.annotations


@pytest.mark.parametrize(
    ("api", "host", "cause"),
    [
        (Api(), {"comes_back": False}, "it does not answer over SSH, 60 s long"),
        (Api(kubelet_comes=False), {}, "its kubelet is not ready: Kubelet stopped posting node status., 30 s long"),
        (Api(gate_opens=False), {}, "it is back, and its gate is closed: 7 of 8 GPUs, 30 s long"),
    ],
    ids=["ssh", "kubelet", "gate"],
)
def test_a_node_that_does_not_come_back_stays_closed_with_the_reason(api: Api, host: Json, cause: str) -> None:
    with pytest.raises(NotBackError) as caught:
        go(api, Host(api, **host))
    assert caught.value.exit_code == 3
    assert cause in str(caught.value) and "it was left closed" in str(caught.value)
    assert api.node["spec"] == {"unschedulable": True}
    cordon, mark = Cordon.of(api.node), Mark.of(api.node)
    assert cordon is not None and cause in cordon.reason and cordon.before is False
    assert mark is not None and cause in mark.fault


def test_t13_a_killed_run_is_gone_on_with_without_a_second_reboot() -> None:
    api = Api()
    api.node["metadata"]["annotations"][REBOOT_ANNOTATION] = Mark(OLD, "10:00", ("the kernel is old",)).text()
    host = Host(api, boot=NEW)
    assert go(api, host) is False
    assert host.reboots == 0
    assert api.node["spec"] == {} and REBOOT_ANNOTATION not in api.annotations


def test_t13_a_run_that_was_killed_before_the_command_reboots() -> None:
    api = Api()
    api.node["metadata"]["annotations"][REBOOT_ANNOTATION] = Mark(OLD, "10:00").text()
    host = Host(api)
    assert go(api, host) is True
    assert host.reboots == 1


def test_t13_a_node_that_is_down_when_the_run_begins_again_is_waited_for() -> None:
    api = Api()
    api.node["metadata"]["annotations"][REBOOT_ANNOTATION] = Mark(OLD, "10:00", (), "it did not answer").text()
    host = Host(api)
    host.reboot()
    assert go(api, host) is False
    assert host.reboots == 1


def test_a_host_that_does_not_answer_is_not_marked() -> None:
    api = Api()
    with pytest.raises(NotBackError, match="does not answer, so it was not rebooted"):
        go(api, Host(api, boot=None))
    assert REBOOT_ANNOTATION not in api.annotations


def test_d2_a_reboot_command_that_is_refused_leaves_the_node_as_it_was() -> None:
    api = Api()

    class Refusing(Host):
        def reboot(self) -> None:
            raise MyriadError("`systemctl reboot` ended with 1: Operation not permitted")

    with pytest.raises(MyriadError, match="Operation not permitted"):
        go(api, Refusing(api))
    assert api.node["spec"] == {} and REBOOT_ANNOTATION not in api.annotations


@pytest.mark.parametrize(
    "away", [ClusterUnreachableError("no answer"), ApiError(403, "Forbidden", "it has just started", where="x")]
)
def test_the_api_server_may_be_away_while_its_own_node_reboots(away: MyriadError) -> None:
    api = Api(gpus=False)
    api.away = away
    go(api, ControlPlane(api, 5))
    assert api.node["spec"] == {}


def test_what_the_kubelet_said_before_the_boot_is_no_sign_of_life() -> None:
    """The API server of the node itself comes back with the old Lease and a Node that is Ready as of then."""
    api = Api(gpus=False)

    api.renews = False
    host = ControlPlane(api, 4)
    with pytest.raises(NotBackError, match="its kubelet does not renew its Lease"):
        go(api, host)


def test_a_node_whose_api_server_never_comes_back_is_told_as_that() -> None:
    api = Api(gpus=False)

    with pytest.raises(NotBackError, match="the API server does not answer"):
        go(api, ControlPlane(api, 10_000))


def test_giving_back_leaves_a_foreign_cordon() -> None:
    node = {"metadata": {"name": "gpu1", "annotations": {REBOOT_ANNOTATION: Mark(OLD).text()}}, "spec": {}}
    assert "spec" not in (given_back(node) or {})
    node["metadata"]["annotations"] = {}
    assert given_back(node) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "has said nothing"),
        ("open", "has said nothing"),
        ('{"open":true,"checks":[]}', "has not judged"),
        ('{"open":true,"run":"before","checks":[]}', "has not judged"),
        ('{"open":false,"run":"q","checks":[{"check":"fabric","ok":false}]}', "closed: fabric"),
        ('{"open":true,"run":"q","checks":[]}', ""),
    ],
)
def test_d7_a_gate_that_was_judged_before_the_reboot_does_not_count(text: str | None, words: str) -> None:
    node = {"metadata": {"annotations": {GATE_ANNOTATION: text} if text else {}}}
    fault = gate_fault(node, "q")
    assert words in fault and bool(fault) == bool(words)


# What asks for a reboot


def test_d8_a_driver_that_was_upgraded_under_its_module(tmp_path: Path) -> None:
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("580.126.20\n")
    libraries = tmp_path / "lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "libnvidia-ml.so.580.142.09").write_text("")
    (libraries / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.142.09")
    loaded = reboot_reasons.loaded_module(str(tmp_path), "/nowhere")
    installed = reboot_reasons.library_versions([str(tmp_path / "lib/*-linux-gnu")])
    assert (loaded, installed) == ("580.126.20", {"580.142.09"})
    assert reboot_reasons.driver_mismatch(loaded, installed, "", "") == [
        "driver module 580.126.20 is loaded, library 580.142.09 is installed"
    ]
    assert reboot_reasons.driver_mismatch(loaded, {"580.126.20"}, "580.142.09", "") == [
        "driver module 580.126.20 is loaded, module 580.142.09 is installed"
    ]
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.142\n"
    assert reboot_reasons.driver_mismatch(loaded, set(), "", said) == [
        "driver module 580.126.20 is loaded, the library is 580.142"
    ]
    assert reboot_reasons.driver_mismatch(loaded, {"580.126.20"}, "580.126.20", "0, Disabled, Disabled") == []
    assert reboot_reasons.driver_mismatch("", installed, "", "") == [], "without a module there is nothing to load anew"


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.173.02  Tue Jun 23 08:38:17 UTC 2026\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.173.02  Release Build  (dvs-builder@U22)\n",
    ],
)
def test_the_version_of_the_module_from_proc(text: str, tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(text)
    assert reboot_reasons.loaded_module("/nowhere", str(tmp_path)) == "580.173.02"


def test_i2_t26_a_mig_mode_that_waits() -> None:
    assert reboot_reasons.mig_pending("0, Disabled, Enabled\n1, Disabled, Enabled\n2, Disabled, Disabled\n") == [
        "MIG enabled waits for it on GPU 0, 1"
    ]
    assert reboot_reasons.mig_pending("0, [N/A], [N/A]\n") == []
    assert reboot_reasons.mig_pending("No devices were found\n") == []


def test_packages_that_ask_for_it(tmp_path: Path) -> None:
    assert reboot_reasons.required_by_packages(str(tmp_path)) == []
    (tmp_path / "reboot-required").write_text("*** System restart required ***\n")
    assert reboot_reasons.required_by_packages(str(tmp_path)) == ["packages ask for it"]
    (tmp_path / "reboot-required.pkgs").write_text("linux-base\nlibc6\nlinux-base\n")
    assert reboot_reasons.required_by_packages(str(tmp_path)) == ["packages ask for it: libc6, linux-base"]


def test_another_kernel(tmp_path: Path) -> None:
    for release in ("6.1.0-9-amd64", "6.1.0-57-amd64", "6.1.0-57-cloud-amd64"):
        (tmp_path / f"vmlinuz-{release}").write_text("")
    kernel = reboot_reasons.other_kernel
    assert kernel("6.1.0-9-amd64", "", str(tmp_path)) == ["kernel 6.1.0-9-amd64 runs, 6.1.0-57-amd64 is installed"]
    assert kernel("6.1.0-57-amd64", "", str(tmp_path)) == []
    assert kernel("6.1.0-9-amd64", "6.1.0-9-amd64", str(tmp_path)) == [], "the newer one is not wanted"
    assert kernel("6.1.0-57-amd64", "6.1.0-9-amd64", str(tmp_path)) == [
        "kernel 6.1.0-57-amd64 runs, 6.1.0-9-amd64 is wanted"
    ]


def test_a_boot_is_told_by_the_start_of_process_1_too(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b-1\n")
    fields = " ".join(str(k) for k in range(4, 53))
    (tmp_path / "1/stat").write_text(f"1 (sd ) init) S {fields}\n")
    assert reboot_reasons.boot_id(str(tmp_path)) == "b-1.22"

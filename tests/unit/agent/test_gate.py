"""The gate's judgement: one case for each way in which a node is not what it should be, with the whole verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from myriad.agent.gate import Check, Kubelet, Surroundings, Verdict, judge
from myriad.agent.probe import ProbeResult
from myriad.fleet.portrait import (
    GPUS,
    MODULE,
    PCI,
    Ecc,
    Expected,
    ExpectedFabric,
    ExpectedMig,
    Fabric,
    Mig,
    MigSlice,
    Neighbour,
    Nic,
    Portrait,
    RowRemap,
    Versions,
    Xid,
)

from .gate_cases import (
    EXPECTED,
    HEALTHY,
    KUBELET,
    MODEL,
    PROBED,
    RESOURCE,
    VERSION,
    VERSIONS_SHOWN,
    good,
    gpu,
    portrait,
    with_driver,
)

REBOOT = "kubectl drain gpu3 --ignore-daemonsets --delete-emptydir-data && ssh gpu3 reboot"

RESET = (
    "kubectl drain gpu3 --ignore-daemonsets --delete-emptydir-data; ssh gpu3 nvidia-smi --gpu-reset -i 5; "
    "then myriad gate gpu3 --run"
)


def verdict(
    found: Portrait, *, expected: Expected = EXPECTED, kubelet: Kubelet = KUBELET, probe: Any = PROBED, **more: Any
) -> Verdict:
    return judge(expected, found, kubelet, probe, surroundings=Surroundings(**more))


def changed(*checks: Check) -> tuple[Check, ...]:
    """The healthy verdict with these checks instead of the good ones of the same name."""
    instead = {check.check: check for check in checks}
    return tuple(instead.get(check.check, check) for check in HEALTHY)


def test_a_healthy_node_is_open() -> None:
    found = verdict(portrait())
    assert found.checks == HEALTHY
    assert found.open and found.cause == "" and found.failing == ()


def test_a_card_that_is_not_on_the_bus_is_the_cause_of_all_that_follows() -> None:
    seven = tuple(gpu(n) for n in range(7))
    found = verdict(portrait(pci=7, gpus=seven), kubelet=Kubelet({RESOURCE: 7}, {RESOURCE: 7}), probe=None)
    assert found.cause == "7 of 8 GPUs are on the PCI bus"
    assert found.next == "ssh gpu3 lspci -nn -d 10de: (power, seating and riser of the missing card)"
    assert [(c.check, c.expected, c.found, c.follows) for c in found.checks if not c.ok] == [
        ("pci", 8, 7, ""), ("driver", 8, 7, "pci"), ("capacity", 8, 7, "pci"), ("allocatable", 8, 7, "pci"),
        ("devices", 8, None, "pci"),
    ]  # fmt: skip
    assert found.failing == ("pci",)


def test_more_cards_than_described_are_a_difference_too() -> None:
    found = verdict(portrait(pci=9))
    assert found.checks == changed(
        Check("pci", 8, 9, False, "9 of 8 GPUs are on the PCI bus",
              "describe them: myriad_gpus: 9 for gpu3 in the inventory, then myriad site --limit gpu3")
    )  # fmt: skip


@pytest.mark.parametrize("userspace", ["580.142.09", "580.142"])
def test_t05_b1_d8_a_library_that_was_upgraded_shows_both_versions_and_reboot_or_hold(userspace: str) -> None:
    said = "nvidia-smi ended with 18: Failed to initialize NVML: Driver/library version mismatch"
    found = verdict(
        portrait(gpus=(), drivers=with_driver(userspace=userspace), faults={GPUS: said}, fabric=Fabric()),
        kubelet=Kubelet({RESOURCE: 8}, {RESOURCE: 0}),
    )
    first = found.first
    assert first is not None
    assert first == Check(
        "versions", VERSION, f"module {VERSION}, library {userspace}, fabric manager {VERSION}", False,
        f"the running module is {VERSION}, the library is {userspace}: packages were changed since the module was "
        "loaded; reboot, or hold the locked version",
        f"{REBOOT} (loads the new module), or hold: myriad site --limit gpu3 (puts the packages back to the locked "
        "version and holds them)",
    )  # fmt: skip
    assert [c.check for c in found.checks if c.follows == "versions"] == ["answers", "driver", "allocatable"]


def test_t05_nvml_names_its_version_before_versions_are_looked_at_again() -> None:
    said = (
        "nvidia-smi ended with 18: Failed to initialize NVML: Driver/library version mismatch NVML library version: "
        "580.142"
    )
    found = verdict(portrait(gpus=(), faults={GPUS: said}, fabric=Fabric()))
    assert found.failing == ("versions",)
    assert found.cause.startswith(f"the running module is {VERSION}, the library is 580.142: packages were changed")


def test_b1_versions_that_agree_as_far_as_nvml_tells_them_are_equal() -> None:
    assert verdict(portrait(drivers=with_driver(userspace="580.126"))).open


def test_t10_c2_a_fabric_manager_of_another_version_keeps_the_gate_closed() -> None:
    found = verdict(portrait(drivers=with_driver(fabric_manager="580.95.05")))
    assert found.checks == changed(
        Check(
            "versions", VERSION, f"module {VERSION}, library {VERSION}, fabric manager 580.95.05", False,
            f"the fabric manager is 580.95.05, the driver is {VERSION}: it starts with its own version only",
            f"myriad site --limit gpu3 (installs nvidia-fabricmanager {VERSION}), or reboot where 580.95.05 is the "
            "locked one",
        )
    )  # fmt: skip


def test_t10_c3_a_node_without_nvswitch_needs_no_fabric() -> None:
    found = verdict(portrait(switches=0, fabric=Fabric(), drivers=with_driver(fabric_manager=None)))
    assert found.open
    assert "fabric" not in {check.check for check in found.checks}


def test_t10_c4_an_nvswitch_without_a_fabric_keeps_the_gate_closed() -> None:
    found = verdict(portrait(fabric=Fabric(), drivers=with_driver(fabric_manager=None)))
    assert found.cause == "4 NVSwitches are on the bus, and no fabric manager is installed; the GPUs report no fabric"
    assert found.next == "ssh gpu3 systemctl status nvidia-fabricmanager; myriad site --limit gpu3"


def test_t11_c1_a_fabric_in_progress_keeps_the_gate_closed_while_nvidia_smi_is_fine() -> None:
    found = verdict(portrait(fabric=Fabric(state="in-progress", status="success")))
    assert found.checks == changed(
        Check(
            "fabric", "completed", "in-progress", False,
            "the NVLink fabric is in-progress, although nvidia-smi answers: CUDA would fail with error 802",
            "ssh gpu3 'systemctl status nvidia-fabricmanager; journalctl -u nvidia-fabricmanager -n 30; "
            "lsmod | grep -E \"ib_umad|mlx5_ib\"'",
        )
    )  # fmt: skip
    assert {c.check for c in found.checks if c.ok} >= {"answers", "driver", "capacity", "allocatable"}


def test_t10_c4_cards_that_never_show_a_fabric_need_their_manager() -> None:
    gpus = [gpu(n, architecture="ampere") for n in range(8)]
    found = verdict(portrait(gpus=gpus, fabric=Fabric()))
    assert found.open and good("fabric", "fabric manager") in found.checks
    without = verdict(portrait(gpus=gpus, fabric=Fabric(), drivers=with_driver(fabric_manager=None)))
    assert without.failing == ("fabric",) and "no fabric manager is installed" in without.cause


def test_a_machine_without_gpus_of_which_none_are_expected_has_nothing_to_prove() -> None:
    none = Expected(gpus=0)
    assert verdict(portrait(pci=0, gpus=(), drivers=(), switches=0), expected=none, probe=None).checks == (
        good("pci", 0),
    )
    assert verdict(portrait(pci=2), expected=none).cause == "2 of 0 GPUs are on the PCI bus"


def test_t11_a_fabric_that_completed_badly_is_not_complete() -> None:
    found = verdict(portrait(fabric=Fabric(state="completed", status="failure")))
    assert found.first is not None and found.first.found == "completed, failure"


def test_the_described_driver_version_is_asked_for() -> None:
    wanted = EXPECTED.model_copy(update={"versions": Versions(driver="580.142.09")})
    found = verdict(portrait(), expected=wanted)
    assert found.first == Check(
        "lock", "580.142.09", VERSION, False, f"the module that runs is {VERSION}; the description says 580.142.09",
        "myriad site --limit gpu3 (installs 580.142.09; the module that runs changes at the next reboot)",
    )  # fmt: skip


def test_a_module_that_is_not_loaded_is_told_with_the_catalogues_words() -> None:
    said = "nvidia-smi ended with 9: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    found = verdict(portrait(gpus=(), drivers=(), faults={MODULE: "/sys/module/nvidia is not there", GPUS: said}))
    assert [c.check for c in found.checks if not c.ok][:2] == ["module", "answers"]
    assert found.failing == ("module",)


def test_a_hang_of_nvidia_smi_is_a_matter_of_health() -> None:
    said = "nvidia-smi does not answer within 20 s: the driver hangs"
    found = verdict(portrait(gpus=(), fabric=Fabric(), faults={GPUS: said}))
    assert found.failing == ("answers",)
    assert said in found.cause and found.next


def test_a_bus_that_cannot_be_read_is_no_count_of_none() -> None:
    found = verdict(portrait(faults={PCI: "the PCI bus cannot be read (/sys: gone)"}))
    assert found.first is not None
    assert (found.first.found, found.first.cause) == (None, "the PCI bus cannot be read (/sys: gone)")
    assert found.next


def test_another_model_than_described_is_named_by_gpu() -> None:
    gpus = [gpu(n) for n in range(7)] + [gpu(7, model="H200-SXM5-141GB", product="NVIDIA H200")]
    found = verdict(portrait(gpus=gpus))
    assert found.checks == changed(
        Check(
            "model", MODEL, "GPU 7: H200-SXM5-141GB", False, f"GPU 7: H200-SXM5-141GB; the description says {MODEL}",
            "put gpu3 into the pool of its model in the inventory, then myriad site --limit gpu3",
        )
    )  # fmt: skip


def test_gpus_with_different_drivers_are_told() -> None:
    gpus = [gpu(n) for n in range(7)] + [gpu(7, driver="580.142.09")]
    found = verdict(portrait(gpus=gpus))
    assert found.cause == f"GPUs report different driver versions: {VERSION}, 580.142.09"


def test_b9_a_lost_gpu_is_named_and_the_counts_follow_from_it() -> None:
    gpus = [gpu(n) for n in range(7)] + [gpu(7, model="", product="", fault="GPU is lost")]
    found = verdict(portrait(gpus=gpus), kubelet=Kubelet({RESOURCE: 8}, {RESOURCE: 7}))
    assert found.failing == ("lost",)
    assert found.cause == "GPU 7: GPU is lost" and REBOOT in found.next
    assert {c.check: c.follows for c in found.checks if not c.ok} == {"lost": "", "allocatable": "lost"}


@pytest.mark.parametrize(
    ("fault", "check", "cause", "next_"),
    [
        (
            {"ecc": Ecc(enabled=True, volatile_uncorrected=2)}, "ecc",
            "GPU 5: 2 uncorrected memory errors since the driver was loaded",
            RESET,
        ),
        (
            {"ecc": Ecc(enabled=True, pending=False)}, "ecc",
            "GPU 5: ECC is on, and off from the next reboot on", REBOOT,
        ),
        (
            {"row_remap": RowRemap(pending=True, failure=False)}, "row-remap",
            "GPU 5: a row remap is pending until the GPU is reset",
            RESET,
        ),
        (
            {"row_remap": RowRemap(pending=False, failure=True)}, "row-remap",
            "GPU 5: row remapping failed: no spare rows are left",
            "kubectl drain gpu3 --ignore-daemonsets --delete-emptydir-data; replace the card of GPU 5",
        ),
        (
            {"xids": (Xid(code=79, first_at="2026-11-29T20:59:00Z"),)}, "xid",
            "GPU 5: Xid 79: the GPU has fallen off the bus (2026-11-29T20:59:00Z)", REBOOT,
        ),
        (
            {"xids": (Xid(code=119),)}, "xid",
            "GPU 5: Xid 119: the GPU's system processor (GSP) does not answer",
            RESET,
        ),
    ],
)  # fmt: skip
def test_memory_and_error_reports_keep_the_gate_closed(fault: Any, check: str, cause: str, next_: str) -> None:
    found = verdict(portrait(gpus=[gpu(n, **(fault if n == 5 else {})) for n in range(8)]))
    assert found.checks == changed(Check(check, 0, 1, False, cause, next_))


def test_xids_that_were_dealt_with_count_no_more_and_new_ones_do() -> None:
    gpus = [gpu(n, xids=(Xid(code=48, at_least=2),)) if n == 5 else gpu(n) for n in range(8)]
    assert verdict(portrait(gpus=gpus), baseline={"GPU-5/48": 2}).open
    assert not verdict(portrait(gpus=gpus), baseline={"GPU-5/48": 1}).open


# MIG


def sliced(*profiles: str, mode: str = "enabled", pending: str = "enabled") -> Any:
    return Mig(mode=mode, pending=pending, slices=tuple(MigSlice(profile=p) for p in profiles))  # type: ignore[arg-type]


MIGGED = EXPECTED.model_copy(update={"mig": ExpectedMig(profiles={"3g.40gb": 2})})
SLICES = Kubelet({"nvidia.com/mig-3g.40gb": 16}, {"nvidia.com/mig-3g.40gb": 16})


def test_mig_as_described_is_open_under_both_strategies_of_the_plugin() -> None:
    found = portrait(gpus=[gpu(n, mig=sliced("3g.40gb", "3g.40gb")) for n in range(8)])
    mixed = verdict(found, expected=MIGGED, kubelet=SLICES)
    assert mixed.open and good("mig", "2 x 3g.40gb") in mixed.checks and good("capacity", 16) in mixed.checks
    assert verdict(found, expected=MIGGED, kubelet=Kubelet({RESOURCE: 16}, {RESOURCE: 16})).open
    assert not verdict(found, expected=MIGGED, kubelet=Kubelet({RESOURCE: 8}, {RESOURCE: 8})).open


def test_i2_a_mig_mode_that_is_pending_keeps_the_gate_closed() -> None:
    gpus = [gpu(n, mig=sliced(mode="disabled", pending="enabled" if n < 2 else "disabled")) for n in range(8)]
    found = verdict(portrait(gpus=gpus), expected=MIGGED)
    assert found.first == Check(
        "mig", "2 x 3g.40gb", "pending", False,
        "the MIG mode of GPU 0, 1 changes at the next reset or reboot only",
        f"myriad site --limit gpu3 (drains, resets, applies the layout), or {REBOOT}",
    )  # fmt: skip
    assert found.checks[-2].follows == "mig"


def test_i2_i4_mig_without_its_slices_is_no_success() -> None:
    found = verdict(portrait(gpus=[gpu(n, mig=sliced()) for n in range(8)]), expected=MIGGED, kubelet=SLICES)
    assert found.cause == (
        "GPU 0: no slice, described: 2 x 3g.40gb; GPU 1: no slice, described: 2 x 3g.40gb; "
        "GPU 2: no slice, described: 2 x 3g.40gb and 5 more"
    )
    assert found.first is not None and (found.first.expected, found.first.found) == ("2 x 3g.40gb", "no slice")


def test_i4_slices_on_a_node_of_whole_cards_are_told() -> None:
    gpus = [gpu(n, mig=sliced("7g.80gb") if n == 3 else sliced(mode="disabled", pending="disabled")) for n in range(8)]
    found = verdict(portrait(gpus=gpus))
    assert found.cause == "GPU 3: MIG is enabled, described: whole card"


def test_cards_that_are_cut_differently_are_judged_one_by_one() -> None:
    cards = {"0": ("3g.40gb", "3g.40gb"), "1": ("7g.80gb",)}
    wanted = EXPECTED.model_copy(
        update={
            "mig": ExpectedMig(cards=cards),
            "resources": {RESOURCE: 6, "nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-7g.80gb": 1},
        }
    )
    whole = sliced(mode="disabled", pending="disabled")
    gpus = [
        gpu(0, mig=sliced("3g.40gb", "3g.40gb")),
        gpu(1, mig=sliced("7g.80gb")),
        *[gpu(n, mig=whole) for n in range(2, 8)],
    ]
    counts = Kubelet(wanted.resources, wanted.resources)
    found = verdict(portrait(gpus=gpus), expected=wanted, kubelet=counts)
    assert found.open and good("mig", "by card") in found.checks
    assert good("allocatable", "gpu 6, mig-3g.40gb 2, mig-7g.80gb 1") in found.checks
    gpus[1] = gpu(1, mig=sliced("3g.40gb"))
    found = verdict(portrait(gpus=gpus), expected=wanted, kubelet=counts)
    assert found.cause == "GPU 1: 1 x 3g.40gb, described: 1 x 7g.80gb"
    lacking = Kubelet(wanted.resources, {RESOURCE: 6, "nvidia.com/mig-3g.40gb": 2})
    gpus[1] = gpu(1, mig=sliced("7g.80gb"))
    found = verdict(portrait(gpus=gpus), expected=wanted, kubelet=lacking)
    assert found.cause == "0 of 1 nvidia.com/mig-7g.80gb are allocatable"


def test_mig_on_cards_that_cannot_do_it_is_told() -> None:
    assert verdict(portrait(), expected=MIGGED, kubelet=SLICES).cause == (
        "MIG is described, and no GPU of the node can do it"
    )


# Topology, interfaces


def test_a_node_that_hangs_on_another_racks_switch_stays_out_until_accepted() -> None:
    switches = {"tor-r1": "hall1/b1/r1", "tor-r2": "hall1/b1/r2"}
    wanted = EXPECTED.model_copy(update={"fabric": ExpectedFabric(neighbours=switches)})
    found = portrait(neighbours=(Neighbour(interface="eth0", chassis="tor-r1", port="swp3"),))
    closed = verdict(found, expected=wanted)
    assert closed.failing == ("topology",)
    assert "hall1/b1/r1" in closed.cause and "hall1/b1/r2" in closed.cause and "tor-r1" in closed.cause
    assert verdict(found, expected=wanted.model_copy(update={"accepted": ("topology",)})).open
    blind = portrait(fabric=Fabric(state="completed", status="success", cluster_uuid="a" * 32, clique=1))
    assert verdict(blind, expected=wanted).open, "an NVLink domain that nobody placed says nothing"
    required = ExpectedFabric(neighbours=switches, required=True)
    assert verdict(blind, expected=EXPECTED.model_copy(update={"fabric": required})).failing == ("topology",)
    right = portrait(neighbours=(Neighbour(interface="eth0", chassis="tor-r2", port="swp3"),))
    assert verdict(right, expected=wanted).open


def test_interfaces_are_as_described() -> None:
    wanted = EXPECTED.model_copy(
        update={"fabric": ExpectedFabric(interfaces={"rail0": {"kind": "roce", "mtu": 9000}, "rail1": {}})}
    )
    found = portrait(nics=(Nic(name="rail0", kind="roce", state="up", mtu=1500),))
    told = verdict(found, expected=wanted)
    assert told.failing == ("interfaces",)
    assert told.cause == ("rail0 has MTU 1500, described is 9000; rail1 is described and not there; interfaces: rail0")
    assert verdict(found, expected=wanted.model_copy(update={"accepted": ("interfaces",)})).open
    both = (Nic(name="rail0", kind="roce", state="up", mtu=9000), Nic(name="rail1", state="up"))
    assert verdict(portrait(nics=both), expected=wanted).open


def test_another_nvlink_domain_than_described_is_told() -> None:
    wanted = EXPECTED.model_copy(update={"fabric": ExpectedFabric(cluster_uuid="aaaa")})
    found = verdict(portrait(fabric=Fabric(state="completed", status="success", cluster_uuid="bbbb")), expected=wanted)
    assert found.cause == "the NVLink domain is bbbb; the description says aaaa"


# Kubelet, policy, container


@pytest.mark.parametrize(
    ("kubelet", "check", "cause"),
    [
        (Kubelet({}, {}), "capacity", "0 of 8 GPUs are known to the kubelet"),
        (Kubelet({RESOURCE: 8}, {RESOURCE: 6}), "allocatable", "6 of 8 GPUs are allocatable"),
    ],
)
def test_c6_what_the_kubelet_does_not_count_is_not_there(kubelet: Kubelet, check: str, cause: str) -> None:
    found = verdict(portrait(), kubelet=kubelet)
    assert (found.failing, found.cause) == ((check,), cause)
    assert found.next.startswith("kubectl get pods -A -o wide --field-selector spec.nodeName=gpu3")


def test_registry_and_images_are_asked_for_if_the_policy_says_so() -> None:
    wanted = EXPECTED.model_copy(update={"registry": "10.0.0.1:5000", "images": ("sha256:aa", "gang-check:0.1.0")})
    there = Kubelet({RESOURCE: 8}, {RESOURCE: 8}, ("r/myriad/gang-check:0.1.0", "r/train@sha256:aa"))
    assert verdict(portrait(), expected=wanted, kubelet=there, registry_fault="").open
    found = verdict(portrait(), expected=wanted, registry_fault="refused")
    assert [(c.check, c.cause) for c in found.checks if not c.ok] == [
        ("registry", "the registry cannot be reached from the node: refused"),
        ("images", "2 of 2 images are not warm: sha256:aa, gang-check:0.1.0"),
    ]
    assert found.next == "ssh gpu3 curl -sS http://10.0.0.1:5000/v2/"
    assert verdict(portrait(), expected=wanted, registry_fault="refused", policy=False).open
    full = verdict(portrait(), expected=wanted, kubelet=replace(KUBELET, images_cut=True), registry_fault="")
    assert full.cause.endswith("(the kubelet lists its 50 largest images only; nodeStatusMaxImages: -1 lists all)")


def test_a_kubelet_is_read_from_its_node() -> None:
    node = {
        "status": {
            "capacity": {"cpu": "96", RESOURCE: "8", "vendor/odd": "1k"},
            "images": [{"names": ["a:1", "a@sha256:0"]}, {}] * 25,
        }
    }
    found = Kubelet.of(node)
    assert (found.capacity, found.allocatable) == ({RESOURCE: 8}, {})
    assert found.images_cut and set(found.images) == {"a:1", "a@sha256:0"}
    assert Kubelet.of({}) == Kubelet()


@pytest.mark.parametrize(
    ("probe", "found", "cause"),
    [
        (None, None, "no container has opened the GPUs since the node came up"),
        (ProbeResult(8, done=False), "probing", "a container is opening the GPUs"),
        (
            ProbeResult(8, 7, {"nvidia3": "ENXIO: No such device or address"}), 7,
            "a container opened 7 of 8 GPUs; nvidia3: ENXIO: No such device or address",
        ),
    ],
)  # fmt: skip
def test_device_nodes_have_to_open_in_a_container(probe: Any, found: Any, cause: str) -> None:
    judged = verdict(portrait(), probe=probe)
    assert judged.failing == ("devices",)
    assert (judged.checks[-1].found, judged.cause) == (found, cause)
    assert judged.next


def test_c1_cuda_error_802_in_the_container_is_told_with_the_catalogues_cause() -> None:
    found = verdict(portrait(), probe=ProbeResult(8, 8, cuda="cuInit gives CUDA error 802 (system not ready)"))
    assert found.failing == ("devices",)
    assert "fabric" in found.cause.lower() and "802" in found.cause and found.next


def test_gpus_in_use_are_not_probed_and_that_is_said() -> None:
    found = verdict(portrait(), probe=ProbeResult(8, skipped="GPUs in use by 2 pods"))
    assert found.open
    assert found.checks[-1] == Check("devices", 8, "not probed: GPUs in use by 2 pods", True)


def test_a_node_that_does_not_probe_has_no_such_check() -> None:
    found = verdict(portrait(), probe=None, probing=False)
    assert found.open and found.checks == HEALTHY[:-1]


def test_follows_names_the_first_difference_only_where_it_can_be_the_cause() -> None:
    found = verdict(
        portrait(pci=7, gpus=[gpu(n, ecc=Ecc(enabled=True, volatile_uncorrected=1)) for n in range(7)]),
        kubelet=replace(KUBELET, allocatable={RESOURCE: 0}),
    )
    assert found.failing == ("pci", "ecc")
    assert VERSIONS_SHOWN in {check.found for check in found.checks}

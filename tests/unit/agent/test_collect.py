"""The readers of what tools print and files hold, one oddity at a time; whole machines are in tests/unit/fleet."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.agent.collect import ascend, nvidia_xml
from myriad.agent.collect.assemble import portrait_of
from myriad.agent.collect.kernel import KernelFacts, Xids
from myriad.agent.collect.lldp import Lldp
from myriad.agent.collect.network import Network
from myriad.agent.collect.nvidia import Nvidia, NvidiaVersions
from myriad.agent.collect.source import NOT_FOUND, Done, Host, Recorded, Recorder
from myriad.agent.steady import Steady, carried
from myriad.errors import InputError
from myriad.fleet.portrait import (
    FABRIC_MANAGER,
    GPUS,
    KERNEL_LOG,
    MODULE,
    NEIGHBOURS,
    NETWORK,
    Gpu,
    Nic,
    Observation,
    Portrait,
    Xid,
)

MACHINES = Path(__file__).parents[2] / "fixtures" / "machines"
AT = "2026-11-29T10:00:00Z"


class Fake:
    """A source of a few files and commands."""

    def __init__(self, files: dict[str, str] | None = None, commands: dict[str, Done] | None = None) -> None:
        self.files = files or {}
        self.commands = commands or {}
        self.asked: list[str] = []

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Done:
        self.asked.append(" ".join(argv))
        return self.commands.get(" ".join(argv)) or Done(NOT_FOUND, fault=f"{argv[0]} is not installed")

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, path: str) -> list[str] | None:
        inside = {p[len(path) + 1 :].split("/")[0] for p in self.files if p.startswith(path + "/")}
        return sorted(inside) or None

    def link(self, path: str) -> str | None:
        return None

    def log(self, path: str) -> str | None:
        return self.files.get(path)


def xml(name: str) -> str:
    return (MACHINES / name / "nvidia-smi-q-x.xml").read_text()


# nvidia-smi


def test_every_schema_gives_the_same_kind_of_facts() -> None:
    for name in ("a100-sxm4-40gb-x8", "a100-sxm4-80gb-x8", "h100-sxm5-x8", "recorded-t4", "recorded-rtx-4000-ada"):
        log = nvidia_xml.read(xml(name))
        assert log is not None and log.gpus and not log.fault
        for gpu in log.gpus:
            assert gpu.uuid and gpu.product and gpu.memory_mib and gpu.vbios and gpu.driver == log.driver
            assert gpu.throttle == () and gpu.temperature == "normal", name


def test_an_answer_that_broke_off_gives_what_was_whole() -> None:
    text = xml("h100-sxm5-x8")
    log = nvidia_xml.read(text[: text.index("<gpu id", text.index("00000000:9D") + 100)] + "<gpu id=")
    assert log is not None and len(log.gpus) == 5 and log.driver == "590.48.01" and "broke off" in log.fault


def test_a_gpu_that_is_lost_inside_the_document_is_no_gpu() -> None:
    text = xml("h100-sxm5-x8").replace("<product_name>NVIDIA H100 80GB HBM3<", "<product_name>GPU is lost<", 1)
    log = nvidia_xml.read(text)
    assert log is not None and log.gpus[0].fault == "GPU is lost" and not log.gpus[1].fault


@pytest.mark.parametrize("blank", ["", " "])
def test_both_spellings_of_the_sentence_name_the_gpu(blank: str) -> None:
    text = f"Unable to determine the device handle for GPU{blank}0000:3B:00.0: Unknown Error\n"
    assert nvidia_xml.lost(text) == {"0000:3b:00.0": "Unknown Error"}


def test_no_document_is_no_log() -> None:
    assert nvidia_xml.read("No devices were found\n") is None
    assert nvidia_xml.read("") is None
    assert nvidia_xml.read('<nvidia_smi_log><!ENTITY x "y"></nvidia_smi_log>') is not None


def test_words_for_not_known_are_not_known() -> None:
    for word in ("N/A", "[N/A]", "[Not Supported]", "Not Supported", "Requested functionality has been deprecated"):
        text = xml("a10-x1").replace(">94.02.5C.00.04<", f">{word}<").replace(">23028 MiB<", f">{word}<")
        log = nvidia_xml.read(text)
        assert log is not None and log.gpus[0].vbios == "" and log.gpus[0].memory_mib is None


def test_heat_by_degrees_and_by_distance() -> None:
    old, new = xml("a10-x1"), xml("l40s-x4")
    for text, before, after, band in (
        (old, "<gpu_temp>34 C<", "<gpu_temp>86 C<", "hot"),
        (old, "<gpu_temp>34 C<", "<gpu_temp>89 C<", "slowdown"),
        (new, "<gpu_temp_tlimit>45 C<", "<gpu_temp_tlimit>0 C<", "hot"),
        (new, "<gpu_temp_tlimit>45 C<", "<gpu_temp_tlimit>-2 C<", "slowdown"),
        (new, "<gpu_temp_tlimit>45 C<", "<gpu_temp_tlimit>1 C<", "normal"),
    ):
        log = nvidia_xml.read(text.replace(before, after, 1))
        assert log is not None and log.gpus[0].temperature == band, after


def test_a_cluster_of_zeros_is_no_domain() -> None:
    log = nvidia_xml.read(xml("h100-sxm5-x8"))
    assert log is not None and log.fabrics[0].state == "completed" and log.fabrics[0].cluster_uuid is None
    real = xml("h100-sxm5-x8").replace("00000000-0000-0000-0000-000000000000", "7B968A6D-C8AA-45E1-9E07-E1E51BE99C31")
    log = nvidia_xml.read(real)
    assert log is not None and log.fabrics[0].cluster_uuid == "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"
    assert log.fabrics[0].clique == 0


def test_one_gpu_whose_fabric_is_behind_speaks_for_the_node() -> None:
    text = xml("h100-sxm5-x8")
    place = text.index("<state>", text.index("00000000:C3"))
    text = text[:place] + text[place:].replace("<state>Completed<", "<state>In Progress<", 1)
    fake = Fake(commands={"nvidia-smi -q -x": Done(0, text)})
    fabric = Nvidia().collect(fake, AT).fabric
    assert fabric is not None and fabric.state == "in-progress"


def test_gpus_in_different_domains_are_said() -> None:
    text = xml("h100-sxm5-x8").replace("<clusterUuid>00000000-", "<clusterUuid>10000000-", 1)
    fabric = Nvidia().collect(Fake(commands={"nvidia-smi -q -x": Done(0, text)}), AT).fabric
    assert fabric is not None and fabric.status == "domains-differ"


def test_topology_and_slices_are_asked_once() -> None:
    machine = Recorder(Recorded(MACHINES / "h100-mig-mixed"))
    fake = Fake(commands={
        "nvidia-smi -q -x": machine.run(["nvidia-smi", "-q", "-x"], timeout_s=1),
        "nvidia-smi -L": machine.run(["nvidia-smi", "-L"], timeout_s=1),
        "nvidia-smi topo -m": machine.run(["nvidia-smi", "topo", "-m"], timeout_s=1),
    })  # fmt: skip
    collector = Nvidia()
    for _ in range(3):
        found = collector.collect(fake, AT)
    assert [piece.profile for piece in found.gpus[1].mig.slices] == [  # type: ignore[union-attr]
        "3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"
    ]  # fmt: skip
    assert fake.asked.count("nvidia-smi -L") == fake.asked.count("nvidia-smi topo -m") == 1


def test_the_matrix_of_links() -> None:
    links = nvidia_xml.links(
        "\x1b[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\x1b[0m\nGPU0\t X \tNV12\tSYS\t0-7\nGPU1\tNV12\t X \tPXB\t0-7\n"
    )
    assert links == {0: {1: 12}, 1: {0: 12}}
    assert nvidia_xml.links("\tGPU0\tCPU Affinity\nGPU0\t X \t0-19\n") == {0: {}}
    assert nvidia_xml.links("GPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\tX\n") == {0: {1: 0}, 1: {0: 0}}


@pytest.mark.parametrize(
    ("text", "loaded", "is_open"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC", "535.104.05", False),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06", True),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.124  Release Build", "570.124", True),
    ],
)  # fmt: skip
def test_the_modules_version(text: str, loaded: str, is_open: bool) -> None:
    found = NvidiaVersions().collect(Fake({"/proc/driver/nvidia/version": text}), AT)
    assert (found.drivers[0].loaded, found.drivers[0].open) == (loaded, is_open)


def test_t05_the_librarys_version_where_no_link_tells() -> None:
    said = "NVIDIA-SMI version  : 590.48.01\nNVML version        : 590.48\nDRIVER version      : 590.44.01\n"
    fake = Fake({"/sys/module/nvidia/version": "590.44.01"}, {"nvidia-smi --version": Done(0, said)})
    driver = NvidiaVersions().collect(fake, AT).drivers[0]
    assert (driver.loaded, driver.userspace) == ("590.44.01", "590.48.01")
    # The tool is of another version than the library: the library's two parts are what is known.
    fake.commands["nvidia-smi --version"] = Done(0, said.replace("SMI version  : 590.48.01", "SMI version  : 580.1.2"))
    assert NvidiaVersions().collect(fake, AT).drivers[0].userspace == "590.48"


def test_a_fabric_manager_that_says_something_else_is_a_fault() -> None:
    fake = Fake(
        {"/sys/module/nvidia/version": "1.2"}, {"nv-fabricmanager --version": Done(1, "", "Segmentation fault")}
    )
    found = NvidiaVersions().collect(fake, AT)
    assert "Segmentation fault" in found.observations[FABRIC_MANAGER].fault and found.drivers[0].fabric_manager is None
    assert not found.observations[MODULE].fault


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (Done(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."), "not loaded"),
        (Done(12, "NVIDIA-SMI couldn't find libnvidia-ml.so"), "libnvidia-ml.so is not found"),
        (Done(255), "said nothing"),
        (Done(-1, fault="nvidia-smi -q -x does not answer within 20 s: the driver hangs"), "the driver hangs"),
    ],
)
def test_an_end_of_nvidia_smi_becomes_a_sentence(done: Done, text: str) -> None:
    found = Nvidia().collect(Fake(commands={"nvidia-smi -q -x": done}), AT)
    assert text in found.observations[GPUS].fault and not found.gpus


# npu-smi


def test_tables_with_two_chips_a_card_and_a_column_more() -> None:
    text = """\
| npu-smi 25.5.0                   Version: 25.5.0                                               |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 7           0    / 0          3416 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3195 / 65536         |
+===========================+===============+====================================================+
| 1     Ascend910           | Critical      | 186.3       36                0    / 0             |
| 0     2                   | 0000:99:00.0  | 0           0    / 0          3415 / 65536         |
"""
    chips = ascend.table(text)
    assert [(c.npu, c.chip, c.address, c.health) for c in chips] == [
        (0, 0, "0000:9d:00.0", "OK"), (0, 1, "0000:9f:00.0", "OK"), (1, 0, "0000:99:00.0", "Critical"),
    ]  # fmt: skip
    assert chips[0].memory_mib == 65536 and chips[0].gauges["utilization_percent"] == 7.0
    assert "power_watts" not in chips[1].gauges
    found = ascend.Ascend().collect(Fake(commands={"npu-smi info": Done(0, text)}), AT)
    assert [bool(gpu.fault) for gpu in found.gpus] == [False, False, True]
    assert found.gpus[0].product == "Ascend 910" and found.gpus[0].driver == "25.5.0"


def test_npu_smi_without_chips_is_a_fault() -> None:
    found = ascend.Ascend().collect(Fake(commands={"npu-smi info": Done(0, "dcmi module initialize failed")}), AT)
    assert "dcmi module initialize failed" in found.observations[GPUS].fault


# The kernel's log


KMSG = "4,{seq},{micro},-;NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, text\n"


def test_xids_of_all_three_formats_of_a_log() -> None:
    for line in (
        KMSG.format(seq=7, micro=5_000_000, code=79),
        "<4>[    5.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, text\n",
        "[    5.000000] NVRM: Xid (PCI:0000:3B:00.0): 79, pid=1, text\n",
    ):
        fake = Fake({"/dev/kmsg": line, "/proc/stat": "cpu 1\nbtime 1795939200"})
        found = Xids().collect(fake, AT)
        assert found.xids == {
            "0000:3b:00.0": (Xid(observed=KERNEL_LOG, code=79, at_least=1, first_at="2026-11-29T08:00:05Z"),)
        }, line


def test_a_ring_that_forgets_is_counted_on() -> None:
    fake = Fake({"/dev/kmsg": "".join(KMSG.format(seq=n, micro=n, code=31) for n in range(1, 4))})
    xids = Xids()
    xids.collect(fake, AT)
    fake.files["/dev/kmsg"] = "".join(KMSG.format(seq=n, micro=n, code=31) for n in range(3, 6))
    found = xids.collect(fake, AT)
    assert xids.counts == {("0000:3b:00.0", 31): 5}
    assert found.xids is not None and found.xids["0000:3b:00.0"][0].at_least == 4


def test_a_log_that_cannot_be_read_is_not_a_log_without_errors() -> None:
    found = Xids().collect(Fake(), AT)
    assert found.xids is None and "cannot be read" in found.observations[KERNEL_LOG].fault


def test_xids_are_carried_over_within_one_boot() -> None:
    def portrait(boot: str, *xids: Xid) -> Portrait:
        return Portrait(node="n", boot_id=boot, gpus=(Gpu(index=0, vendor="nvidia", pci_address="a", xids=xids),))

    old = portrait("1", Xid(code=79, at_least=4, first_at="t1"), Xid(code=31, at_least=8, first_at="t0"))
    new = carried(portrait("1", Xid(code=31, at_least=2, first_at="t2"), Xid(code=48)), old)
    assert [(x.code, x.at_least, x.first_at) for x in new.gpus[0].xids or ()] == [
        (31, 8, "t0"), (48, 1, ""), (79, 4, "t1"),
    ]  # fmt: skip
    assert carried(portrait("2"), old).gpus[0].xids == ()


def test_a_container_that_started_again_is_another_boot() -> None:
    files = {
        "/proc/sys/kernel/random/boot_id": "b1",
        "/proc/1/stat": "1 (init (x)) S " + " ".join(["0"] * 18) + " 777777 0",
    }
    assert KernelFacts().collect(Fake(files), AT).boot_id == "b1.777777"
    files["/proc/1/stat"] = "1 (systemd) S " + " ".join(["0"] * 18) + " 4 0"
    assert KernelFacts().collect(Fake(files), AT).boot_id == "b1"
    del files["/proc/1/stat"]
    assert KernelFacts().collect(Fake(files), AT).boot_id == "b1"


# Network, neighbours


def test_interfaces_that_carry_nothing_of_their_own_are_none() -> None:
    fake = Fake({
        "/sys/class/net/lo/mtu": "65536", "/sys/class/net/docker0/bridge/x": "",
        "/sys/class/net/eno1/device/numa_node": "-1", "/sys/class/net/eno1/speed": "25000",
        "/sys/class/net/eno1/operstate": "up", "/sys/class/net/eno1/mtu": "1500",
        "/sys/class/net/eno2/device/numa_node": "1", "/sys/class/net/eno2/speed": "-1",
        "/sys/class/net/eno2/operstate": "down",
        "/sys/class/infiniband/mlx5_0/device/net/ens1/x": "", "/sys/class/net/ens1/device/numa_node": "0",
        "/sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet",
        "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "/sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)", "/sys/class/net/ens1/mtu": "9000",
        "/sys/class/infiniband/mlx5_9/ports/1/link_layer": "InfiniBand",
        "/sys/class/infiniband/mlx5_9/ports/1/state": "1: DOWN",
        "/sys/class/infiniband/mlx5_9/ports/1/rate": "40 Gb/sec (4X QDR)",
    })  # fmt: skip
    nics = {nic.name: nic for nic in Network().collect(fake, AT).nics}
    assert nics == {
        "eno1": Nic(observed=NETWORK, name="eno1", rate_gbit_s=25.0, state="up", mtu=1500),
        "eno2": Nic(observed=NETWORK, name="eno2", state="down", numa_node=1),
        "ens1": Nic(observed=NETWORK, name="ens1", device="mlx5_0", kind="roce", rate_gbit_s=200, state="up", mtu=9000),
        "mlx5_9": Nic(observed=NETWORK, name="mlx5_9", device="mlx5_9", kind="infiniband", state="down"),
    }  # fmt: skip


def test_bonds_vlans_and_what_the_description_names_are_interfaces() -> None:
    fake = Fake({
        "/sys/class/net/bond0/lower_ens1/x": "", "/sys/class/net/bond0/operstate": "up",
        "/sys/class/net/bond0/mtu": "9000", "/sys/class/net/bond0/speed": "50000",
        "/sys/class/net/cni0/lower_veth1/x": "", "/sys/class/net/cni0/bridge/x": "",
        "/sys/class/net/fab0/mtu": "4200", "/sys/class/net/fab0/operstate": "up",
    })  # fmt: skip
    assert [nic.name for nic in Network().collect(fake, AT).nics] == ["bond0"]
    nics = Network(described=frozenset({"fab0", "gone0"})).collect(fake, AT).nics
    assert [(nic.name, nic.mtu, nic.state) for nic in nics] == [("bond0", 9000, "up"), ("fab0", 4200, "up")]


def test_neighbours_and_what_goes_wrong_with_them() -> None:
    call = "lldpcli -f json0 show neighbors details"
    text = (
        '{"lldp":[{"interface":[{"name":"eth0","chassis":[{"id":[{"type":"mac","value":"aa:bb"}],'
        '"name":[{"value":"tor-1"}]}],"port":[{"id":[{"type":"ifname","value":"swp1"}]}]}]}]}'
    )
    found = Lldp().collect(Fake(commands={call: Done(0, text)}), AT)
    assert [(n.interface, n.chassis, n.chassis_id, n.port) for n in found.neighbours] == [
        ("eth0", "tor-1", "aa:bb", "swp1")
    ]
    assert Lldp().collect(Fake(), AT).observations == {}
    failed = Lldp().collect(Fake(commands={call: Done(1, "", "unable to connect to socket")}), AT)
    assert "unable to connect" in failed.observations[NEIGHBOURS].fault
    assert "no JSON" in Lldp().collect(Fake(commands={call: Done(0, "oops")}), AT).observations[NEIGHBOURS].fault


# What flickers


def test_what_flickers_is_believed_after_three_looks() -> None:
    def portrait(*throttle: str, state: Any = "up") -> Portrait:
        return Portrait(
            node="n", boot_id="b", gpus=(Gpu(index=0, vendor="nvidia", throttle=throttle),),
            nics=(Nic(name="e", state=state),), observations={GPUS: Observation(source="s", at=AT)},
        )  # fmt: skip

    steady = Steady()
    looks = ["", "hot", "", "hot", "hot", "hot", "hot", ""]
    seen = [steady.calm(portrait(*([look] if look else []))).gpus[0].throttle for look in looks]
    assert seen == [(), (), (), (), (), ("hot",), ("hot",), ("hot",)]
    steady = Steady()
    assert [steady.calm(portrait(state=s)).nics[0].state for s in ("up", "down", "down", "down")] == [
        "up", "up", "up", "down",
    ]  # fmt: skip


# Sources


def test_a_program_that_cannot_be_killed_is_started_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "stuck"
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    program.chmod(0o755)
    killed: list[int] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: killed.append(self.pid))
    host = Host(programs={"stuck": str(program)})
    assert "hangs" in host.run(["stuck"], timeout_s=0.3).fault
    began = time.monotonic()
    for _ in range(3):
        assert "hangs" in host.run(["stuck"], timeout_s=30).fault
    assert time.monotonic() - began < 5 and len(killed) == 1
    monkeypatch.undo()
    process, _since = next(iter(host._hung.values()))
    process.kill()
    process.communicate()


def test_programs_run_in_the_nodes_own_root_and_without_the_agents_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def popen(call: list[str], **more: Any) -> Any:
        calls.append((call, more["env"]))
        raise OSError(2, "No such file or directory")

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    done = Host(root=Path("/host"), programs={"nvidia-smi": "/opt/bin/nvidia-smi"}).run(
        ["nvidia-smi", "-L"], timeout_s=1
    )
    assert done.missing and "cannot be started" in done.fault
    assert calls[0][0] == ["chroot", "/host", "/opt/bin/nvidia-smi", "-L"]
    assert "KUBERNETES_SERVICE_HOST" not in calls[0][1]


def test_sysfs_stands_where_it_is_said_to_and_the_kernels_own_stays(tmp_path: Path) -> None:
    (tmp_path / "lab/sys/class/net/e0").mkdir(parents=True)
    (tmp_path / "lab/sys/class/net/e0/mtu").write_text("1500\n")
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.1\n")
    (tmp_path / "proc/driver").mkdir()
    (tmp_path / "proc/driver/x").write_text("the host's\n")
    host = Host(root=tmp_path, sysfs="/lab/sys", procfs="/lab/proc")
    assert host.read("/sys/class/net/e0/mtu") == "1500" and host.names("/sys/class/net") == ["e0"]
    assert host.read("/proc/sys/kernel/osrelease") == "6.1" and host.read("/proc/driver/x") is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.1.2")
    (tmp_path / "lib/alias").symlink_to("/lib/libnvidia-ml.so.1")
    assert host.link("/lib/alias") == "/lib/libnvidia-ml.so.580.1.2" and host.link("/lib/none") is None


def test_the_kernels_log_is_read_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("one\n")
    host = Host(root=tmp_path)
    assert host.log("/plain") == "one" and host.log("/none") is None
    os.mkfifo(tmp_path / "pipe")
    assert host.log("/pipe") == ""


def test_a_recording_reads_as_its_machine(tmp_path: Path) -> None:
    def nameless(portrait: Portrait) -> Portrait:
        gpus = tuple(gpu.model_copy(update={"uuid": ""}) for gpu in portrait.gpus)
        return portrait.model_copy(update={"machine_id": "", "boot_id": "", "gpus": gpus})

    recorder = Recorder(Recorded(MACHINES / "h100-one-lost"))
    one, _ = portrait_of("n", recorder, AT)
    recorder.save(tmp_path)
    other, _ = portrait_of("n", Recorded(tmp_path), AT)
    assert nameless(one) == nameless(other) and len({gpu.uuid for gpu in other.gpus}) == 8
    assert "loading NVIDIA" in yaml.safe_load((tmp_path / "files.yml").read_text())["/dev/kmsg"]


def test_a_recording_names_no_card(tmp_path: Path) -> None:
    card, piece = "GPU-513536b6-7d19-9063-b049-1e69664bb298", "MIG-fcbfc3ed-0b5b-5d2b-9b1c-0d2f6a6a1a11"
    query = f"<serial>1650522003820</serial><uuid>{card}</uuid>"
    fake = Fake(commands={"a": Done(0, query), "b": Done(0, f"(UUID: {card})\n(UUID: {piece})"),
                          "c": Done(0, "\tSerial Number                  : 1020D0A12\n")})  # fmt: skip
    recorder = Recorder(fake)
    for name in ("a", "b", "c"):
        recorder.run([name], timeout_s=1)
    recorder.save(tmp_path)
    said = [path.read_text() for path in sorted(tmp_path.glob("*.out"))]
    assert said == [
        "<serial>0000000000000</serial><uuid>GPU-00000000-0000-4000-8000-000000000000</uuid>",
        "(UUID: GPU-00000000-0000-4000-8000-000000000000)\n(UUID: MIG-00000000-0000-4000-8000-000000000001)",
        "\tSerial Number                  : 000000000\n",
    ]


def test_a_folder_without_a_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no recorded machine"):
        Recorded(tmp_path)

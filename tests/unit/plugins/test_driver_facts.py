"""What a host says about its driver: file trees of sysfs and procfs, composed from the kernel's documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
# /proc/driver/nvidia/version of the two modules, first line (README of the driver, chapter "procfs").
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Tue Mar 24 02:37:08 UTC 2026\nGCC version:  gcc 12\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.20  Release Build  (user@host)\n"


@pytest.fixture
def facts(plugin):
    return plugin("module_utils.driver_facts")


def write(root: Path, **files: bytes | str) -> Path:
    """Files below a folder; a double underscore in a name is a slash."""
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def efi(root: Path, **variables: int | bytes) -> Path:
    """EFI variables with their four bytes of attributes before the value (Linux, efivarfs)."""
    folder = root / "firmware" / "efi" / "efivars"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in variables.items():
        guid = SHIM if name.startswith("Mok") else GLOBAL
        data = bytes([value]) if isinstance(value, int) else value
        (folder / f"{name}-{guid}").write_bytes(b"\x06\0\0\0" + data)
    return root


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SecureBoot": 1, "SetupMode": 0}, True),
        ({"SecureBoot": 0}, False),
        ({"SecureBoot": 1, "SetupMode": 1}, False),
        ({"SecureBoot": 1, "MokSBStateRT": 1}, False),
        ({}, None),
    ],
    ids=["on", "off", "setup-mode", "shim-does-not-verify", "unreadable"],
)
def test_b8_secure_boot(facts, tmp_path, variables, expected):
    assert facts.secure_boot(str(efi(tmp_path, **variables))) is expected


def test_b8_a_bios_has_no_secure_boot(facts, tmp_path):
    assert facts.secure_boot(str(tmp_path)) is False


def test_b8_the_key_of_dkms_is_enrolled_or_not(facts, tmp_path):
    key = b"\x30\x82\x03\x01 a certificate in DER"
    sysfs = efi(tmp_path / "sys", MokListRT=b"header of the list" + key + b"end")
    assert facts.mok_enrolled(str(sysfs), str(tmp_path)) is None  # dkms has no key yet
    write(tmp_path, var__lib__dkms__X=b"").joinpath("var/lib/dkms/mok.pub").write_bytes(key)
    assert facts.mok_enrolled(str(sysfs), str(tmp_path)) is True
    (tmp_path / "var/lib/dkms/mok.pub").write_bytes(key + b" another")
    assert facts.mok_enrolled(str(sysfs), str(tmp_path)) is False


def device(root: Path, address: str, vendor: str, number: str, kind: str, driver: str = "") -> None:
    folder = root / "bus/pci/devices" / address
    write(folder, vendor=vendor + "\n", device=number + "\n", subsystem_vendor="0x10de\n", subsystem_device="0x16c1\n")
    (folder / "class").write_text(kind + "\n")
    if driver:
        target = root / "bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)


def test_b9_gpus_bridges_and_accelerators_are_told_the_rest_is_not(facts, tmp_path):
    device(tmp_path, "0000:1b:00.0", "0x10de", "0x2330", "0x030200", "nvidia")
    device(tmp_path, "0000:05:00.0", "0x10de", "0x22a3", "0x068000")
    device(tmp_path, "0000:c1:00.0", "0x19e5", "0xd802", "0x120000")
    device(tmp_path, "0000:03:00.0", "0x1a03", "0x2000", "0x030000", "ast")
    device(tmp_path, "0000:00:1f.0", "0x8086", "0x1bca", "0x060100")
    device(tmp_path, "0000:01:00.0", "0x15b3", "0x101d", "0x020700", "mlx5_core")
    found = facts.pci_devices(str(tmp_path))
    assert [(one["address"], one["device"], one["driver"]) for one in found] == [
        ("0000:03:00.0", "0x2000", "ast"),
        ("0000:05:00.0", "0x22a3", None),
        ("0000:1b:00.0", "0x2330", "nvidia"),
        ("0000:c1:00.0", "0xd802", None),
    ]
    assert found[2]["subsystem_device"] == "0x16c1"
    assert facts.pci_devices(str(tmp_path / "nothing")) == []


def test_c4_the_way_to_the_nvswitches_of_nvlink_5_is_told_by_its_product_data(facts, tmp_path):
    device(tmp_path, "0000:05:00.0", "0x15b3", "0x1021", "0x020700", "mlx5_core")
    (tmp_path / "bus/pci/devices/0000:05:00.0/vpd").write_bytes(b"\x82\x10\x00ConnectX-7\xffV2\x06SW_MNG")
    found = facts.pci_devices(str(tmp_path))
    assert len(found) == 1
    assert "SW_MNG" in found[0]["vpd"]


def test_a_device_that_fell_off_the_bus_answers_with_ones(facts, tmp_path):
    device(tmp_path, "0000:1b:00.0", "0x10de", "0x2330", "0x030200", "nvidia")
    config = tmp_path / "bus/pci/devices/0000:1b:00.0/config"
    config.write_bytes(b"\xde\x10\x30\x23" + b"\0" * 60)
    assert facts.pci_devices(str(tmp_path))[0]["device"] == "0x2330"
    config.write_bytes(b"\xff" * 64)
    assert [(one["vendor"], one["device"]) for one in facts.pci_devices(str(tmp_path))] == [("0xffff", "0xffff")]


@pytest.mark.parametrize(
    ("sysfs", "procfs", "expected"),
    [
        ({}, {}, (None, None)),
        ({"module__nvidia__version": "535.309.01\n"}, {"driver__nvidia__version": CLOSED}, ("535.309.01", "NVIDIA")),
        ({}, {"driver__nvidia__version": OPEN}, ("580.126.20", "Dual MIT/GPL")),
        ({"module__nvidia__version": "580.126.20\n"}, {}, ("580.126.20", None)),
    ],
    ids=["none", "proprietary", "open-by-procfs", "sysfs-only"],
)
def test_the_loaded_module(facts, tmp_path, sysfs, procfs, expected):
    write(tmp_path / "sys", **sysfs)
    write(tmp_path / "proc", **procfs)
    assert facts.loaded_module(str(tmp_path / "sys"), str(tmp_path / "proc")) == expected


@pytest.mark.parametrize(
    ("files", "cmdline", "expected"),
    [
        ({}, "quiet", False),
        ({"etc__modprobe.d__a.conf": "# blacklist nouveau\n"}, "", False),
        ({"etc__modprobe.d__a.conf": "options x y\nblacklist nouveau\n"}, "", True),
        ({"usr__lib__modprobe.d__nvidia.conf": "alias nouveau off\n"}, "", True),
        ({"etc__modprobe.d__a.conf.bak": "blacklist nouveau\n"}, "", False),
        ({}, "ro modprobe.blacklist=nouveau,nvidiafb", True),
    ],
    ids=["nowhere", "a-comment", "a-file", "an-alias", "not-a-conf", "command-line"],
)
def test_whether_nouveau_is_kept_out(facts, tmp_path, files, cmdline, expected):
    write(tmp_path, **files)
    write(tmp_path / "proc", cmdline=cmdline)
    assert facts.nouveau_blacklisted(str(tmp_path / "proc"), str(tmp_path)) is expected


def test_b6_leftovers_of_a_runfile(facts, tmp_path):
    assert facts.runfile([], str(tmp_path)) == {"runfile": False, "version": None}
    write(tmp_path, usr__bin__X="")
    (tmp_path / "usr/bin/nvidia-uninstall").write_text("")
    assert facts.runfile([], str(tmp_path)) == {"runfile": True, "version": None}
    write(
        tmp_path, var__lib__nvidia__log="535.129.03\nNVIDIA Accelerated Graphics Driver for Linux-x86_64 (535.129.03)\n"
    )
    assert facts.runfile([], str(tmp_path)) == {"runfile": True, "version": "535.129.03"}


def test_d8_why_a_reboot_is_needed(facts, tmp_path):
    root = str(tmp_path)
    assert facts.reboot_reasons(None, "580.126.20", "580.126.20", root) == []
    assert facts.reboot_reasons("580.126.20", "580.126.20", "580.126.20", root) == []
    assert facts.reboot_reasons("535.309.01", "580.126.20", "580.126.20", root) == [
        "the kernel runs module 535.309.01, 580.126.20 is installed"
    ]
    write(tmp_path, run__X="")
    (tmp_path / "run/reboot-required").write_text("*** System restart required ***\n")
    (tmp_path / "run/reboot-required.pkgs").write_text("linux-image-6.1.0-57-amd64\ndbus\ndbus\n")
    assert facts.reboot_reasons(None, None, "", root) == ["asked for by dbus, linux-image-6.1.0-57-amd64"]


def test_d8_the_module_in_the_kernel_is_not_the_locked_one(facts, tmp_path):
    assert facts.reboot_reasons("535.309.01", None, "580.126.20", str(tmp_path)) == [
        "the kernel runs module 535.309.01, the lock says 580.126.20"
    ]


# As `modinfo` of Debian 12 printed it for the module that dkms built from nvidia-kernel-dkms in a lab node.
MODINFO = """\
filename:       /lib/modules/6.1.0-57-amd64/updates/dkms/nvidia-current.ko
alias:          char-major-195-*
version:        535.309.01
supported:      external
license:        NVIDIA
vermagic:       6.1.0-57-amd64 SMP preempt mod_unload modversions 
sig_id:         PKCS#7
signer:         DKMS module signing key
"""  # noqa: W291 (as it is printed)


def test_modinfo_finds_the_name_that_the_distribution_gave_the_module(facts, plugin, monkeypatch):
    asked = []

    def run(command, timeout):
        asked.append(command[-1])
        return (0, MODINFO) if command[-1] == "nvidia-current" else (1, "modinfo: ERROR: Module not found.\n")

    monkeypatch.setattr(plugin("module_utils.packages"), "run", run)
    assert facts.modinfo("6.1.0-57-amd64") == {
        "version": "535.309.01",
        "vermagic": "6.1.0-57-amd64",
        "license": "NVIDIA",
        "signer": "DKMS module signing key",
        "filename": "/lib/modules/6.1.0-57-amd64/updates/dkms/nvidia-current.ko",
    }
    assert asked == ["nvidia", "nvidia-current"]


class Apt:
    """Answers for one package."""

    def __init__(self) -> None:
        self.fetched = 0

    def fetch(self):
        self.fetched += 1
        return "Hit:1 http://mirror.example ./ InRelease\n"

    def versions(self, names):
        return {"nvidia-smi": ["3", "2"]} if "nvidia-smi" in names else {}

    def simulate(self, packages, remove):
        return {"install": dict(packages), "remove": list(remove), "upgrade": {}, "error": None}


@pytest.fixture
def look(facts, plugin, tmp_path, monkeypatch):
    """All facts of a host without a driver, from the folder of the test."""

    def run(command, timeout=0, **_environment):
        if command[0] == "dpkg-query":
            return 0, "dkms\tall\t3.0\tinstall\tinstalled\tok\nbash\tamd64\t5\tinstall\tinstalled\tok\n"
        return 1, ""

    monkeypatch.setattr(plugin("module_utils.packages"), "run", run)

    def call(apt, **options):
        params = {"kernel": "6.1.0-57-amd64", "root": str(tmp_path), "version": "", "names": [], "simulate": {}}
        params.update(sysfs=str(tmp_path / "sys"), procfs=str(tmp_path / "proc"), remove=[])
        params.update(record=str(tmp_path / "none.json"), **options)
        return facts.facts(params, apt)

    return call


def test_another_kernel_than_the_running_one_is_looked_at(look, tmp_path):
    write(tmp_path, etc__X="")
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
    (tmp_path / "lib/modules/6.1.0-57-amd64/build").mkdir(parents=True)
    (tmp_path / "lib/modules/6.1.0-57-amd64/build/Makefile").write_text("")
    found, _said = look(Apt())
    assert found["kernel"] == {
        "release": "6.1.0-57-amd64",
        "headers": True,
        "headers_package": "linux-headers-6.1.0-57-amd64",
        "distribution": {"id": "debian", "version": "12", "codename": "bookworm"},
    }
    assert found["installed"] == {"dkms": "3.0"}
    assert look(Apt(), kernel="6.1.0-60-amd64")[0]["kernel"]["headers"] is False


def test_t16_nothing_is_asked_of_a_repository_when_nothing_is_to_be_installed(look):
    apt = Apt()
    found, _said = look(apt)
    assert (apt.fetched, found["candidates"], found["simulation"]) == (0, None, None), "not asked is not: has nothing"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('APT::Periodic::Unattended-Upgrade "1";\n', True),
        ('APT::Periodic::Unattended-Upgrade "7";\n', True),
        ('APT::Periodic::Unattended-Upgrade "always";\n', True),
        ('APT::Periodic::Unattended-Upgrade "12h";\n', True),
        ('APT::Periodic::Unattended-Upgrade "0";\n', False),
        ("", False),
    ],
)
def test_b1_upgrades_by_themselves_are_seen_at_any_period(facts, plugin, monkeypatch, said, expected):
    monkeypatch.setattr(plugin("module_utils.packages"), "run", lambda command, timeout=0: (0, said))
    assert facts.unattended_upgrades(["unattended-upgrades"]) is expected
    assert facts.unattended_upgrades([]) is False


def test_the_exact_set_is_simulated_when_the_repositories_have_it(look):
    apt = Apt()
    found, said = look(apt, names=["nvidia-smi"], simulate={"nvidia-smi": "2"})
    assert found["candidates"] == {"nvidia-smi": ["2", "3"]}
    assert found["simulation"]["install"] == {"nvidia-smi": "2"}
    assert said.startswith("Hit:1")
    found, _said = look(apt, names=["nvidia-smi"], simulate={"nvidia-smi": "1"})
    assert found["simulation"] is None


def test_apt_stands_aside_of_the_host(plugin, tmp_path, monkeypatch):
    """Sources that are not on the host yet: a folder of their own, with the keyring where the source says it is."""
    packages = plugin("module_utils.packages")
    files = {
        "/etc/apt/sources.list.d/x.sources": "Types: deb\nSigned-By: /etc/apt/keyrings/x.asc\n",
        "/etc/apt/keyrings/x.asc": "key\n",
    }
    asked = []
    monkeypatch.setattr(packages, "run", lambda command, timeout=0: asked.append(command) or (0, ""))
    with packages.Apt(files) as apt:
        folder = Path(apt.folder)
        source = (folder / "sources.list.d" / "x.sources").read_text()
        assert f"Signed-By: {folder}/keyrings/x.asc" in source
        assert (folder / "keyrings" / "x.asc").read_text() == "key\n"
        apt.fetch()
        assert f"Dir::State::lists={folder}/lists/" in asked[0]
    assert not folder.exists()


# --- the controller's half -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("existing", "recorded", "expected"),
    [
        ("adopt", {}, "adopt"),
        ("adopt", {"nvidia-smi": "2"}, "replace"),
        ("adopt", {"nvidia-smi": "1"}, "adopt"),
        ("skip", {"nvidia-smi": "2"}, "skip"),
    ],
    ids=["somebody-elses", "ours-and-still-locked", "ours-and-no-longer-locked", "skip"],
)
def test_t05_a_set_that_the_role_brought_is_put_right_again(plugin, existing, recorded, expected):
    own_set = plugin("action.driver_facts").own_set
    want = {"existing": existing, "packages": {"nvidia-smi": "2", "libcuda1": "2"}}
    assert own_set({"recorded": recorded}, want)["existing"] == expected


def test_t09_what_follows_from_an_unread_repository_is_left_out(plugin):
    plan = {
        "action": "install",
        "refusals": [{"rule": "vanished", "sentence": "x"}, {"rule": "headers", "sentence": "no headers"}],
    }
    told = plugin("action.driver_facts").refused(plan, "repository http://m/: the key X has expired.", "http://m/")
    assert (told["action"], told["refused"]) == ("refused", True)
    assert [one["sentence"] for one in told["refusals"]] == [
        "repository http://m/: the key X has expired.",
        "no headers",
    ]

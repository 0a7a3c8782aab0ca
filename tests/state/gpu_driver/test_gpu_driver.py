"""A host with one exact driver set, held, recorded, and with its module built for the host's kernel."""

import json

import pytest
from testinfra.host import Host

testinfra_hosts = ["ansible://gpu_nodes"]


@pytest.fixture
def record(host: Host) -> dict:
    """What the role recorded; a host that somebody else gives its driver has none."""
    path = host.file("/var/lib/myriad/state/gpu_driver.json")
    if not path.exists:
        pytest.skip("gpu_driver left this host alone (gpu_driver_existing: skip, or no GPU)")
    return json.loads(path.content_string)


def test_installed_is_what_was_locked(host: Host, record: dict) -> None:
    assert record["packages"]
    found = {entry["name"]: host.package(entry["name"]).version for entry in record["packages"]}
    assert found == {entry["name"]: entry["version"] for entry in record["packages"]}


def test_b1_the_set_is_held_and_left_alone_by_unattended_upgrades(host: Host, record: dict) -> None:
    held = host.check_output("apt-mark showhold").split()
    names = {entry["name"] for entry in record["packages"]}
    assert names <= set(held)
    blacklist = host.check_output("apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert [name for name in names if f'"^{name}$"' not in blacklist] == []


def test_the_module_is_built_in_the_version_of_the_set(host: Host, record: dict) -> None:
    versions = {entry["name"]: entry["version"] for entry in record["packages"]}
    module = next(version for name, version in versions.items() if name.endswith("dkms"))
    built = host.check_output(
        "for kernel in $(ls /lib/modules); do "
        "modinfo -k $kernel -F version nvidia 2>/dev/null || modinfo -k $kernel -F version nvidia-current 2>/dev/null; "
        "done"
    )
    assert built and all(module.startswith(version) for version in built.split())


def test_nouveau_is_kept_out(host: Host, record: dict) -> None:
    assert "blacklist nouveau" in host.file("/etc/modprobe.d/myriad-gpu-driver.conf").content_string

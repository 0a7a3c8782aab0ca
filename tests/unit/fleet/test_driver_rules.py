"""The tables behind driver plans: kinds of packages, versions, kernels."""

from __future__ import annotations

import pytest

from myriad.fleet.driver import rules
from myriad.fleet.driver.versions import branch, compare, older, upstream, version_key


@pytest.mark.parametrize(
    ("package", "kind"),
    [
        ("nvidia-kernel-dkms", "module-proprietary"),
        ("nvidia-open-kernel-dkms", "module-open"),
        ("nvidia-open-kernel-support", "module-open"),
        ("nvidia-kernel-open-dkms", "module-open"),
        ("nvidia-kernel-support", "module-support"),
        ("nvidia-dkms-580-server", "module-proprietary"),
        ("nvidia-dkms-580-server-open", "module-open"),
        ("nvidia-dkms-580", "module-proprietary"),
        ("nvidia-dkms-open", "module-open"),
        ("linux-modules-nvidia-580-server-open-6.8.0-151-generic", "module-open"),
        ("linux-modules-nvidia-580-server-generic", "module-proprietary"),
        ("nvidia-fabricmanager-580", "fabric-manager"),
        ("nvidia-fabricmanager", "fabric-manager"),
        ("nvlsm", "subnet-manager"),
        ("nvidia-imex-580", "imex"),
        ("nvidia-persistenced", "persistence"),
        ("nvidia-compute-utils-580-server", "userspace"),
        ("nvidia-modprobe", "modprobe"),
        ("nvidia-settings", "settings"),
        ("libcuda1:amd64", "userspace"),
        ("libnvidia-ml1", "userspace"),
        ("nvidia-driver-cuda", "userspace"),
        ("nvidia-open-580", "userspace"),
        ("firmware-nvidia-gsp", "firmware"),
        ("nvidia-firmware-580-server-580.178.04", "firmware"),
        ("nvidia-kernel-common", "glue"),
        ("nvidia-kernel-common-580-server", "module-support"),
        # Names that begin alike and are no part of the driver.
        ("nvidia-container-toolkit", None),
        ("libnvidia-container1", None),
        ("nvidia-cuda-toolkit", None),
        ("nvidia-driver-pinning-580", None),
        ("libnvidia-ml-dev", None),
        ("linux-image-6.1.0-57-amd64", None),
        ("linux-modules-6.8.0-151-generic", None),
        ("datacenter-gpu-manager", None),
    ],
)
def test_packages_are_told_apart_by_their_names(package: str, kind: str | None) -> None:
    found = rules.kind_of(package)
    assert (found.name if found else None) == kind


def test_every_kind_says_where_its_rule_stands() -> None:
    for kind in rules.kinds().values():
        assert kind.version in ("driver", "branch", "own")
        assert kind.source and kind.about


def test_every_set_names_packages_of_their_kind() -> None:
    assert {(one.distribution, one.channel) for one in rules.sets()} == {
        (name, channel) for name in ("debian", "ubuntu") for channel in ("distribution", "vendor")
    }
    for one in rules.sets():
        for kind in one.names:
            for alternatives in one.patterns(kind, "580.126.20"):
                for name in alternatives:
                    found = rules.kind_of(name.replace("*", "generic"))
                    # Ubuntu's compute-utils carry the daemon and follow the driver's version.
                    expected = "userspace" if name.startswith("nvidia-compute-utils") else kind
                    assert found is not None and found.name == expected, name


@pytest.mark.parametrize(
    ("version", "driver", "number"),
    [
        ("535.309.01-0+deb12u1", "535.309.01", 535),
        ("535.171.04-1~deb12u1", "535.171.04", 535),
        ("580.178.04-0ubuntu0.24.04.1", "580.178.04", 580),
        ("1:580.126.20-1ubuntu1", "580.126.20", 580),
        ("580.142-1", "580.142", 580),
        ("20220217+3~deb12u1", "", 0),
    ],
)
def test_the_driver_version_in_a_package_version(version: str, driver: str, number: int) -> None:
    assert upstream(version) == driver
    if driver:
        assert branch(version) == number


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("535.261.03-1", "535.309.01-0+deb12u1"),
        ("535.171.04-1~deb12u1", "535.171.04-1"),
        ("1.0~rc1", "1.0"),
        ("1.9", "1.10"),
        ("2.0", "1:1.0"),
        ("1.0", "1.0+b1"),
        ("1.0-1", "1.0-1+b6"),
        ("1.0a", "1.0+"),
        ("6.1.187-1", "6.1.190-1"),
    ],
)
def test_versions_are_ordered_as_dpkg_orders_them(old: str, new: str) -> None:
    assert compare(old, new) < 0 < compare(new, old)
    assert compare(old, old) == 0
    assert sorted([new, old], key=version_key) == [old, new]


def test_dotted_versions_are_compared_by_number() -> None:
    assert older("580.95.05", "580.126.20")
    assert not older("580.126.20", "580.126.20")
    assert older("580.142", "580.142.1")


@pytest.mark.parametrize(
    ("driver", "last", "proven"),
    [
        ("535.261.03", "6.15", True),
        ("535.309.01", "6.16", True),
        ("535.400.01", "6.16", False),
        ("570.133.20", "6.14", True),
        ("580.126.20", "7.0", True),
        ("580.178.04", "7.1", False),
        ("595.45.04", None, False),
    ],
)
def test_b2_the_newest_kernel_that_a_driver_builds_for(driver: str, last: str | None, proven: bool) -> None:
    limit, known = rules.kernel_limit(driver)
    assert (limit.last if limit else None) == last
    assert known is proven

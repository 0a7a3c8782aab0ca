"""One exact transaction of packages, over a package manager that answers like apt and dpkg."""

from __future__ import annotations

import json
import subprocess

import pytest

# As `apt-get --simulate` of Debian 12.15 printed it for the driver of its security archive.
SIMULATION = """\
Reading package lists...
NOTE: This is only a simulation!
Inst nvidia-legacy-check (535.309.01-0+deb12u1 Debian-Security:12/oldstable-security [amd64])
Inst libnvidia-ml1 [535.261.03-1] (535.309.01-0+deb12u1 Debian-Security:12/oldstable-security [amd64]) []
Inst libcuda1:i386 (535.309.01-0+deb12u1 Debian-Security:12/oldstable-security [i386])
Remv nvidia-tesla-470-alternative [470.256.02-1~deb12u1]
Purg glx-alternative-nvidia [1.2.2]
Conf nvidia-legacy-check (535.309.01-0+deb12u1 Debian-Security:12/oldstable-security [amd64])
"""
# The same, for a set that does not fit together.
UNMET = """\
Some packages could not be installed. This may mean that you have
requested an impossible situation.

The following packages have unmet dependencies:
 nvidia-driver-cuda : Depends: libcuda1 (= 580.126.20-1) but 580.142.09-1 is to be installed
                      Depends: libnvidia-ml1 (= 580.126.20-1) but 580.142.09-1 is to be installed
E: Unable to correct problems, you have held broken packages.
"""


@pytest.fixture
def packages(plugin):
    return plugin("module_utils.packages")


def test_a_simulation_is_read(packages):
    assert packages.parse_simulation(SIMULATION) == {
        "install": {
            "nvidia-legacy-check": "535.309.01-0+deb12u1",
            "libcuda1:i386": "535.309.01-0+deb12u1",
        },
        "upgrade": {"libnvidia-ml1": ["535.261.03-1", "535.309.01-0+deb12u1"]},
        "remove": ["nvidia-tesla-470-alternative", "glx-alternative-nvidia"],
        "error": None,
    }


def test_a_set_that_does_not_fit_says_which_dependency(packages):
    error = packages.parse_simulation(UNMET)["error"]
    assert "nvidia-driver-cuda : Depends: libcuda1 (= 580.126.20-1) but 580.142.09-1 is to be installed" in error
    assert error.endswith("E: Unable to correct problems, you have held broken packages.")
    assert "impossible situation" not in error


def test_versions_are_those_of_repositories_only(packages):
    text = (
        " nvidia-smi | 535.309.01-0+deb12u1 | http://deb.debian.org/debian-security x/non-free amd64 Packages\n"
        " nvidia-smi | 535.261.03-1 | http://deb.debian.org/debian bookworm/non-free amd64 Packages\n"
        " nvidia-smi | 535.261.03-1 | http://mirror.example/debian bookworm/non-free amd64 Packages\n"
        "nvidia-graphics-drivers | 535.261.03-1 | http://deb.debian.org/debian bookworm/non-free Sources\n"
    )
    assert packages.parse_versions(text) == {"nvidia-smi": ["535.309.01-0+deb12u1", "535.261.03-1"]}


ANOTHER_ARCHITECTURE = """\
dpkg\tamd64\t1.21.22\tinstall\tinstalled\tok
nvidia-support\tall\t20220217\tinstall\tinstalled\tok
libnvidia-ml1\tamd64\t535.309.01-0+deb12u1\thold\tinstalled\tok
libnvidia-ml1\ti386\t535.309.01-0+deb12u1\tinstall\thalf-configured\tok
libcuda1\tamd64\t535.261.03-1\tdeinstall\tconfig-files\tok
libcuda1\ti386\t535.261.03-1\thold\tinstalled\tok
"""


def test_another_architecture_is_another_package(packages, monkeypatch):
    """A host with the libraries of i386 only (wine, steam) has no driver of its own."""
    monkeypatch.setattr(packages, "run", lambda command, timeout=0: (0, ANOTHER_ARCHITECTURE))
    database = packages.Database()
    assert sorted(database.names()) == ["dpkg", "libnvidia-ml1", "nvidia-support"]
    assert database.versions["libcuda1:i386"] == "535.261.03-1"
    assert database.held == {"libnvidia-ml1", "libcuda1:i386"}
    assert database.unfinished == {"libnvidia-ml1:i386": "half-configured"}


def test_a_record_is_compared_with_the_hosts_own_architecture(plugin, monkeypatch):
    kernel = plugin("module_utils.kernel")
    shown = (
        "dpkg\tamd64\t1.21.22\tinstalled\nlibcuda1\ti386\t535.261.03-1\tinstalled\n"
        "libcuda1\tamd64\t535.261.03-1\tconfig-files\nnvidia-support\tall\t1\tinstalled\n"
    )
    done = subprocess.CompletedProcess([], 0, stdout=shown, stderr="")
    monkeypatch.setattr(kernel.subprocess, "run", lambda command, **_options: done)
    assert kernel.package_versions(["libcuda1", "libcuda1:i386", "nvidia-support"]) == {
        "libcuda1:i386": "535.261.03-1",
        "nvidia-support": "1",
    }


def test_the_newer_words_of_apt_are_read_too(packages):
    text = (
        "Unsatisfied dependencies:\n nvidia-smi : Depends: libnvidia-ml1 (= 2) but it is not going to be installed\n"
        "Error: Unable to satisfy dependencies. Reached two conflicting assignments:\n"
    )
    error = packages.parse_simulation(text)["error"]
    assert error.startswith("nvidia-smi : Depends: libnvidia-ml1 (= 2)") and "Unable to satisfy" in error
    gone = f"Error: Failed to fetch {MIRROR}./Release  404  Not Found [IP: 192.0.2.1 80]\n"
    assert packages.explain_fetch(gone, MIRROR, "x").startswith(f"repository {MIRROR}: Failed to fetch")


def test_versions_with_epoch_tilde_and_plus_are_read_as_they_are(packages):
    line = (
        "Inst docker-ce [5:27.0.1-1~debian.12~bookworm] (5:29.1.2-1~debian.12~bookworm Docker CE:bookworm [amd64]) []\n"
    )
    assert packages.parse_simulation(line)["upgrade"] == {
        "docker-ce": ["5:27.0.1-1~debian.12~bookworm", "5:29.1.2-1~debian.12~bookworm"]
    }
    text = " docker-ce | 5:29.1.2-1~debian.12~bookworm | https://m.example/docker bookworm/stable amd64 Packages\n"
    assert packages.parse_versions(text) == {"docker-ce": ["5:29.1.2-1~debian.12~bookworm"]}


MIRROR = "http://mirror.example/cuda/"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            # apt 2.6 of Debian 12 with gpgv, for a key of a test.
            f"W: GPG error: {MIRROR} ./ Release: The following signatures were invalid: "
            "EXPKEYSIG A4B469963BF863CC vendor\n"
            f"E: The repository '{MIRROR} ./ Release' is not signed.\n",
            ["key A4B469963BF863CC in /site/vendor.asc has expired", "put it into the site's keyring", "boot path"],
        ),
        (
            f"W: GPG error: {MIRROR} ./ Release: The following signatures couldn't be verified because the public "
            "key is not available: NO_PUBKEY A4B469963BF863CC\n"
            f"E: The repository '{MIRROR} ./ Release' is not signed.\n",
            ["A4B469963BF863CC", "signed with another key now"],
        ),
        (
            # apt 3.0 of Debian 13 asks sqv; composed from its messages.
            f"Err:2 {MIRROR} ./ Release.gpg\n  Sub-process /usr/bin/sqv returned an error code (1), error message is: "
            "Missing key EB693B3035CD5710E231E123A4B469963BF863CC, which is needed to verify signature.\n"
            f"W: OpenPGP signature verification failed: {MIRROR} ./ Release\n",
            ["EB693B3035CD5710E231E123A4B469963BF863CC", "another key"],
        ),
        (
            # sqv's words begin with a capital: "Expired on".
            f"Err:2 {MIRROR} ./ Release.gpg\n  Sub-process /usr/bin/sqv returned an error code (1), error message is: "
            "Signing key on EB693B3035CD5710E231E123A4B469963BF863CC is not live:\n"
            "   because: The primary key is not live\n   because: Expired on 2026-01-01T00:00:00Z\n",
            ["EB693B3035CD5710E231E123A4B469963BF863CC", "has expired"],
        ),
        (
            f"Err:2 {MIRROR} ./ Release.gpg\n  Sub-process /usr/bin/sqv returned an error code (1), error message is: "
            "Signing key on EB693B3035CD5710E231E123A4B469963BF863CC is not bound:\n"
            "   No binding signature at time 2026-11-29T00:00:00Z\n"
            "   because: Policy rejected non-revocation signature (PositiveCertification) requiring second pre-image "
            "resistance\n   because: SHA1 is not considered secure since 2026-02-01T00:00:00Z\n",
            ["EB693B3035CD5710E231E123A4B469963BF863CC", "SHA1"],
        ),
        (
            f"E: Release file for {MIRROR}InRelease is expired (invalid since 12d 3h 4min 5s). Updates for this "
            "repository will not be applied.\n",
            ["its index is expired (invalid since 12d 3h 4min 5s)", "Sync the mirror", "clock"],
        ),
        (
            f"E: Failed to fetch {MIRROR}./Release  404  Not Found [IP: 192.0.2.1 80]\n",
            ["404 Not Found", f"curl -I {MIRROR}"],
        ),
    ],
    ids=["expired", "rotated", "rotated-sqv", "expired-sqv", "sha1-sqv", "stale-mirror", "gone"],
)  # fmt: skip
def test_t09_why_lists_were_not_fetched(packages, said, words):
    message = " ".join(packages.explain_fetch(said, MIRROR, "/site/vendor.asc").split())
    for word in words:
        assert word in message


def test_t09_trouble_of_another_repository_is_not_ours(packages):
    said = "W: Failed to fetch http://elsewhere.example/dists/x/InRelease  Could not resolve 'elsewhere.example'\n"
    assert packages.explain_fetch(said, MIRROR, "k") is None
    assert packages.explain_fetch("Hit:1 http://mirror.example/cuda ./ InRelease\n", MIRROR, "k") is None
    key = "Sub-process /usr/bin/sqv returned an error code (1), error message is: Missing key A4B469963BF863CC, which"
    other = (
        f"Err:2 http://elsewhere.example/deb x InRelease\n  {key}\n"
        "W: GPG error: http://mirror.example/cuda-old ./ Release: EXPKEYSIG A4B469963BF863CC x\n"
    )
    assert packages.explain_fetch(f"{other}Hit:3 {MIRROR} ./ InRelease\n", MIRROR, "k") is None
    gone = packages.explain_fetch(f"{other}E: Failed to fetch {MIRROR}./Release  404  Not Found\n", MIRROR, "k")
    assert "404" in gone and "signing key" not in gone


def test_t09_a_password_in_the_address_is_not_in_apts_words(packages):
    said = f"W: GPG error: {MIRROR} ./ Release: NO_PUBKEY A4B469963BF863CC\n"
    told = packages.explain_fetch(said, MIRROR.replace("//", "//name:word@"), "k")
    assert "another key" in told and "word" not in told


def test_b4_what_nobody_asked_for_is_said(packages):
    simulation = {
        "install": {
            "nvidia-smi": "2",
            "linux-image-6.1.0-60-amd64": "6.1.200-1",
            "linux-headers-6.1.0-60-amd64": "6.1.200-1",
        },
        "upgrade": {"libnvidia-ml1": ["1", "3"], "linux-image-amd64": ["6.1.192-3", "6.1.200-1"]},
        "remove": ["site-monitor", "old-driver"],
    }
    said = packages.unforeseen(simulation, {"nvidia-smi": "2", "libnvidia-ml1": "2"}, ["old-driver"])
    assert said == [
        "libnvidia-ml1 would become 3, the lock says 2",
        "site-monitor would be removed",
        "the kernel package linux-image-6.1.0-60-amd64 would be changed to 6.1.200-1",
        "the kernel package linux-image-amd64 would be changed to 6.1.200-1",
    ]


# --- the transaction over a package manager --------------------------------------------------------------------------


class Manager:
    """apt, dpkg and modinfo in one: what is installed, what the repository has, and what really happens."""

    def __init__(self, installed, offered):
        self.installed = dict(installed)
        self.offered = offered
        self.fresh = None
        self.held = set()
        self.unfinished = {}
        self.removes = []
        self.kernels = {}
        self.really = {}
        self.module = None
        self.calls = []
        self.fails = ""
        self.needed_by = {}

    def run(self, command, timeout=0, **environment):
        program, words = command[0], [word for word in command[1:] if not word.startswith("-") and "::" not in word]
        self.calls.append(" ".join([program, *words]))
        return getattr(self, program.replace("-", "_"))(command, words)

    def dpkg_query(self, _command, _words):
        lines = [
            f"{n}\tamd64\t{v}\t{'hold' if n in self.held else 'install'}\tinstalled\tok"
            for n, v in self.installed.items()
        ]
        lines += [f"{n}\tamd64\t1\tinstall\t{state}\tok" for n, state in self.unfinished.items()]
        return 0, "\n".join(lines) + "\n"

    def apt_cache(self, _command, words):
        rows = [(n, v) for n in words[1:] for v in self.offered.get(n, ())]
        return 0, "".join(f" {n} | {v} | {MIRROR} ./ Packages\n" for n, v in rows)

    def apt_get(self, command, words):
        verb = next(word for word in words if word in ("update", "install", "purge"))
        names = words[words.index(verb) + 1 :]
        if verb == "update":
            if self.fresh is not None:
                self.offered = self.fresh
            return 0, ""
        if verb == "purge":
            gone = set(names) | {by for name, by in self.needed_by.items() if name in names}
            if "--simulate" not in command:
                for name in gone:
                    self.installed.pop(name, None)
            return 0, "".join(f"Purg {name} [1]\n" for name in sorted(gone))
        wanted = dict(name.split("=", 1) for name in names if "=" in name)
        # Without a version apt takes its candidate.
        wanted |= {name: self.offered[name][0] for name in names if "=" not in name and not name.endswith("-")}
        text = ""
        for name, version in {**wanted, **self.kernels}.items():
            old = self.installed.get(name)
            if old != version:
                text += f"Inst {name} {f'[{old}] ' if old else ''}({version} made [amd64])\n"
        text += "".join(f"Remv {name} [1]\n" for name in self.removes)
        if "--simulate" in command:
            return 0, text
        if self.fails:
            return 100, self.fails
        self.installed.update({**wanted, **self.really})
        self.unfinished = {name: state for name, state in self.unfinished.items() if name not in wanted}
        return 0, text

    def apt_mark(self, _command, words):
        change = {"hold": self.held.update, "unhold": self.held.difference_update, "manual": set}[words[0]]
        change(words[1:])
        return 0, ""

    def dpkg(self, _command, _words):
        self.installed.update(dict.fromkeys([n for n, s in self.unfinished.items() if s == "half-configured"], "1"))
        self.unfinished = {name: state for name, state in self.unfinished.items() if state != "half-configured"}
        return 0, "Setting up\n"

    def modinfo(self, _command, _words):
        if self.module is None:
            return 1, "modinfo: ERROR: Module nvidia not found.\n"
        return 0, "".join(f"{key}:   {value}\n" for key, value in self.module.items())

    def apt_config(self, _command, _words):
        return 0, ""


LOCK = {"nvidia-smi": "2", "libnvidia-ml1": "2"}


@pytest.fixture
def manager(packages, monkeypatch):
    made = Manager({"libc6": "1"}, {"nvidia-smi": ["3", "2"], "libnvidia-ml1": ["3", "2"]})
    monkeypatch.setattr(packages, "run", made.run)
    return made


@pytest.fixture
def transact(plugin, tmp_path, manager):
    module = plugin("modules.packages")

    def run(*, check=False, **options):
        params = {name: spec.get("default") for name, spec in module.ARGUMENTS.items()}
        params.update(packages=LOCK, role="gpu_driver", state_dir=str(tmp_path / "state"), run_id="r1")
        params.update(sysfs=str(tmp_path), procfs=str(tmp_path), repository=MIRROR, keyring="k")
        params.update(options)
        return module.Transaction(params, check).run()

    return run


def record(tmp_path):
    return json.loads((tmp_path / "state" / "gpu_driver.json").read_text())


def test_the_set_is_installed_held_and_recorded(transact, manager, tmp_path):
    result = transact()
    assert result["changed"] is True
    assert result["transaction"]["install"] == LOCK
    assert manager.installed == {"libc6": "1", **LOCK}
    assert manager.held == set(LOCK)
    assert {(e["name"], e["version"], e["brought"]) for e in record(tmp_path)["packages"]} == {
        (name, version, True) for name, version in LOCK.items()
    }


def test_t16_a_host_that_has_it_asks_no_repository(transact, manager):
    transact()
    manager.calls.clear()
    assert transact()["changed"] is False
    assert not [call for call in manager.calls if call.startswith(("apt-get", "apt-cache", "apt-mark hold"))]


def test_t17_check_mode_predicts_the_same_and_touches_nothing(transact, manager, tmp_path):
    predicted = transact(check=True)
    assert manager.installed == {"libc6": "1"}
    assert not (tmp_path / "state").exists()
    assert transact()["changed_items"] == predicted["changed_items"]


def test_t17_before_the_repository_is_there_the_simulation_aside_predicts(transact, manager):
    manager.offered = {}
    foreseen = {"install": {**LOCK, "dkms": "3"}, "remove": [], "upgrade": {}, "error": None}
    assert transact(check=True, foreseen=foreseen)["transaction"] == foreseen


def test_t08_h3_a_vanished_version_is_refused_with_those_that_there_are(transact, manager, packages):
    manager.offered = {"nvidia-smi": ["3"], "libnvidia-ml1": ["3"]}
    with pytest.raises(packages.PackageError) as error:
        transact()
    assert "nvidia-smi 2 is no longer in the repository, which has 3" in str(error.value)
    assert "a newer version is never taken" in str(error.value)
    assert manager.installed == {"libc6": "1"}


def test_t08_lists_that_are_too_old_are_fetched_once(transact, manager):
    manager.offered, manager.fresh = {}, {"nvidia-smi": ["2"], "libnvidia-ml1": ["2"]}
    assert transact()["changed"] is True
    assert manager.calls.count("apt-get update") == 1


def test_t08_h3_apt_that_installs_another_version_is_found_with_both(transact, manager, packages):
    manager.really = {"libnvidia-ml1": "3"}
    with pytest.raises(packages.PackageError, match="libnvidia-ml1 is 3, the lock says 2"):
        transact()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"removes": ["site-monitor"]}, "site-monitor would be removed"),
        ({"kernels": {"linux-image-amd64": "6.2"}}, "kernel package linux-image-amd64 would be changed to 6.2"),
    ],
    ids=["removal", "kernel"],
)
def test_b4_a_transaction_that_does_more_is_refused_before_it_begins(transact, manager, packages, change, words):
    vars(manager).update(change)
    with pytest.raises(packages.PackageError, match=words):
        transact()
    assert manager.installed == {"libc6": "1"}


def test_b1_a_package_that_somebody_else_holds_does_not_move_along(transact, manager, packages):
    manager.kernels = {"libc6": "2"}
    manager.held = {"libc6"}
    with pytest.raises(packages.PackageError, match=r"libc6, which somebody holds on this host .* would become 2"):
        transact()
    assert manager.installed == {"libc6": "1"}
    manager.held = set()
    transact()


def test_b1_what_the_role_holds_itself_moves_along(transact, manager):
    transact(hold=["libc6"])
    assert "libc6" in manager.held
    manager.kernels = {"libc6": "2"}
    result = transact(packages={"nvidia-smi": "3", "libnvidia-ml1": "3"}, hold=["libc6"])
    assert result["transaction"]["upgrade"]["libc6"] == ["1", "2"]


def test_k1_the_error_of_apt_is_told_with_its_last_lines(transact, manager, packages):
    manager.fails = (
        "Get:1 http://x\nSetting up nvidia-smi (2) ...\ndpkg: error processing package nvidia-smi (--configure):\n"
    )
    with pytest.raises(packages.PackageError) as error:
        transact()
    assert "dpkg: error processing package nvidia-smi" in str(error.value)
    assert "Get:1" not in str(error.value)


def test_e3_what_a_killed_transaction_would_have_brought_is_recorded_before_it_begins(
    transact, manager, packages, tmp_path
):
    manager.fails = "killed\n"
    with pytest.raises(packages.PackageError):
        transact()
    assert {entry["name"] for entry in record(tmp_path)["packages"]} == set(LOCK)


def test_e3_a_killed_dpkg_is_finished_first(transact, manager):
    manager.unfinished = {"tzdata": "half-configured", "nvidia-smi": "half-installed"}
    result = transact()
    assert result["changed_items"][:2] == ["package nvidia-smi finished", "package tzdata finished"]
    assert manager.unfinished == {}


def test_e3_what_dpkg_cannot_finish_is_named(transact, manager, packages):
    manager.unfinished = {"tzdata": "half-installed"}
    with pytest.raises(packages.PackageError, match=r"tzdata \(half-installed\)"):
        transact()


def test_t05_a_package_that_moved_comes_back(transact, manager):
    transact()
    manager.installed["libnvidia-ml1"] = "3"
    result = transact()
    assert result["transaction"]["upgrade"] == {"libnvidia-ml1": ["3", "2"]}
    assert manager.installed["libnvidia-ml1"] == "2"


def test_a_package_that_was_there_before_is_not_ours_to_remove(transact, manager, tmp_path):
    manager.installed["libnvidia-ml1"] = "2"
    manager.held.add("libnvidia-ml1")
    transact()
    assert [e["name"] for e in record(tmp_path)["packages"] if e.get("brought")] == ["nvidia-smi"]
    assert {e["name"]: e["ours"] for e in record(tmp_path)["holds"]} == {"nvidia-smi": True, "libnvidia-ml1": False}


def test_what_is_no_longer_locked_is_kept_in_mind_for_a_reset(transact, manager, tmp_path):
    transact()
    transact(packages={"nvidia-smi": "2"})
    data = record(tmp_path)
    assert [e["name"] for e in data["packages"]] == ["nvidia-smi"]
    assert [e["name"] for e in data["brought"]] == ["libnvidia-ml1"]


# --- the module ------------------------------------------------------------------------------------------------------

MODULE = {"version": "2.0", "vermagic": "6.1.0-57-amd64 SMP preempt", "license": "NVIDIA", "filename": "/lib/x.ko"}


def test_the_module_is_proven_by_modinfo(transact, manager):
    manager.module = MODULE
    result = transact(kernel_module={"kernel": "6.1.0-57-amd64", "version": "2.0"})
    assert (result["module"]["version"], result["module"]["vermagic"]) == ("2.0", "6.1.0-57-amd64")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (None, "modinfo finds none"),
        ({**MODULE, "vermagic": "6.1.0-40-amd64 SMP"}, "shows version 2.0 for 6.1.0-40-amd64"),
        ({**MODULE, "version": "1.9"}, "shows version 1.9 for 6.1.0-57-amd64"),
    ],
    ids=["none", "other-kernel", "other-version"],
)
def test_b2_a_module_that_is_not_built_fails_with_what_dkms_said(
    transact, manager, packages, plugin, monkeypatch, module, words
):
    manager.module = module
    monkeypatch.setattr(
        plugin("module_utils.driver_facts"),
        "build",
        lambda version, kernel: "Building module...\nerror: too few arguments\n",
    )
    with pytest.raises(packages.PackageError) as error:
        transact(kernel_module={"kernel": "6.1.0-57-amd64", "version": "2.0"})
    assert "no module 2.0 was built for kernel 6.1.0-57-amd64" in str(error.value)
    assert words in str(error.value)
    assert "error: too few arguments" in str(error.value)


# --- removal ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def need(transact, manager):
    """What every node needs, in any version."""
    manager.offered = {"socat": ["1.8~bpo12+1", "1.7"], "conntrack": ["1.4"]}
    return lambda **options: transact(packages={}, present=["conntrack", "socat"], **options)


def test_packages_in_any_version_are_what_apt_prefers_and_stay_unheld(need, manager, tmp_path):
    foretold = need(check=True)
    assert "socat" not in manager.installed
    result = need()
    assert (
        result["changed_items"] == foretold["changed_items"] == ["package conntrack 1.4", "package socat 1.8~bpo12+1"]
    )
    # Which version is best is apt's to say: no version is named.
    assert "apt-get install conntrack socat" in manager.calls
    assert manager.held == set()
    assert not record(tmp_path)["packages"]
    manager.calls.clear()
    assert need()["changed"] is False
    assert manager.calls == ["dpkg-query"], "a host that has them asks no repository"


def test_another_version_of_a_needed_package_stays(need, manager):
    manager.installed |= {"socat": "1.0", "conntrack": "9.9"}
    assert need()["changed"] is False
    assert manager.installed["conntrack"] == "9.9"


def test_lists_too_old_for_a_needed_package_are_fetched_in_a_run_only(need, manager):
    manager.fresh, manager.offered = manager.offered, {}
    assert need(check=True)["changed_items"] == ["package conntrack installed", "package socat installed"]
    assert "apt-get update" not in manager.calls
    assert need()["changed"] is True
    assert manager.calls.count("apt-get update") == 1


def test_a_needed_package_that_nobody_has_is_named(need, manager, packages):
    del manager.offered["socat"]
    with pytest.raises(packages.PackageError, match=r"no repository of this host has socat\. Nothing was installed"):
        need()
    assert "conntrack" not in manager.installed


def test_needed_packages_take_nothing_away_and_finish_what_was_cut_off(need, manager, packages):
    manager.removes = ["openssh-server"]
    with pytest.raises(packages.PackageError, match="openssh-server would be removed"):
        need()
    manager.removes, manager.unfinished = [], {"socat": "half-installed"}
    assert need()["changed"] is True
    assert manager.installed["socat"]


def test_purge_takes_what_came_and_leaves_what_others_need(packages, manager):
    assert packages.purge_plan({"nvidia-smi", "libnvidia-ml1"}) == (["libnvidia-ml1", "nvidia-smi"], {})
    manager.needed_by = {"libnvidia-ml1": "site-monitor"}
    assert packages.purge_plan({"nvidia-smi", "libnvidia-ml1"}) == (["nvidia-smi"], {"libnvidia-ml1": "site-monitor"})


def test_a_reset_removes_what_the_record_says_was_brought(plugin, manager, transact, tmp_path):
    manager.installed["libnvidia-ml1"] = "2"
    transact()
    module = plugin("module_utils.reset")
    params = {"root": "/", "state_dir": str(tmp_path / "state"), "keep": [], "role": None}
    work = module.Reset(params, check=False)
    work.packages()
    assert manager.installed == {"libc6": "1", "libnvidia-ml1": "2"}
    assert manager.held == set()
    assert work.removed == ["hold of libnvidia-ml1", "hold of nvidia-smi", "package nvidia-smi"]

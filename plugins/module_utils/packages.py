"""apt and dpkg of a node: what is installed, what apt would do, one exact transaction, and why it failed.

Everything is asked of the programs themselves in the C locale and parsed by functions that are tested by value. A
simulation may stand aside of the host: a throw-away apt configuration with further sources, which writes nothing
outside its own folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time

from ansible_collections.myriad.gpu.plugins.module_utils.record import below

#: Never answered, never asked, nothing restarted: a question would hang the run, a restart is the roles' decision.
QUIET = {
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBIAN_PRIORITY": "critical",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",
    "UCF_FORCE_CONFFOLD": "1",
}
LOCK_TIMEOUT_S = 120
#: A driver's module is built inside the transaction, on a slow host for every kernel that it has.
TRANSACTION_TIMEOUT_S = 3600
TAIL_LINES = 25
APT_OPTIONS = [
    "-o", "Dpkg::Options::=--force-confdef",
    "-o", "Dpkg::Options::=--force-confold",
    "-o", "Dpkg::Use-Pty=0",
    "-o", f"DPkg::Lock::Timeout={LOCK_TIMEOUT_S}",
]  # fmt: skip
#: With this file apt asks the bundle's repository alone (role node_base); no other source stands beside it then.
ALONE = "/etc/apt/apt.conf.d/53myriad-repository"
#: Images and what is built for one kernel. Headers are no kernel: they may come as a dependency of dkms.
KERNEL = re.compile(r"^linux-(image|modules|generic|aws|azure|gcp|oracle|kvm|virtual|lowlatency)\b")
DONE = "installed"
IDLE = (DONE, "not-installed", "config-files")
#: How apt begins an error: the second one from version 3 on, where its new output is switched on.
ERRORS = ("E: ", "Error: ")
WARNINGS = ("W: ", "Warning: ")

_ACTION = re.compile(
    r"^(?P<verb>Inst|Remv|Purg) (?P<name>[^\s:]+)(?::(?P<arch>\S+))?"
    r"(?: \[(?P<old>[^\]\s]+)\])?(?: \((?P<new>\S+)[^)]*\))?"
)


class PackageError(Exception):
    """The package manager cannot do what is asked; the message says what, where and what to do next."""


def run(command, timeout=TRANSACTION_TIMEOUT_S, **environment):
    """A program with its output and errors in one text, in the order in which they came."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **QUIET, **environment},
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise PackageError(
            f"{command[0]} is not on this host: packages are handled on Debian and Ubuntu only"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise PackageError(
            f"`{' '.join(command)}` did not end within {timeout} s. Look at the host (ps, dmesg), then run again."
        ) from error
    return done.returncode, done.stdout.decode("utf-8", "replace")


# --- what is installed -----------------------------------------------------------------------------------------------


class Database:
    """dpkg's own words about every package, read once.

    Attributes:
        versions: version by name of what is completely installed; `name:arch` too. A name alone is the host's own
            architecture: libcuda1 of i386 beside it, or without it, is `libcuda1:i386` only.
        held: names that dpkg holds, `name:arch` for another architecture.
        unfinished: names whose installation was broken off, with their state.
    """

    def __init__(self, root="/"):
        command = [
            "dpkg-query",
            *(["--admindir=" + below(root, "/var/lib/dpkg")] if root not in ("", "/") else []),
            "--show",
            "--showformat=${Package}\\t${Architecture}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\t"
            "${db:Status-Eflag}\\n",
        ]
        code, text = run(command, timeout=60)
        if code != 0:
            raise PackageError(f"dpkg-query fails: {tail(text)}")
        self.versions, self.held, self.unfinished = {}, set(), {}
        rows = [columns for columns in (line.split("\t") for line in text.splitlines()) if len(columns) == 6]
        # dpkg itself is of the host's architecture.
        own = {"all", *(row[1] for row in rows if row[0] == "dpkg")}
        for package, architecture, version, want, status, flag in rows:
            name = package if architecture in own or len(own) == 1 else f"{package}:{architecture}"
            if want == "hold":
                self.held.add(name)
            if status == DONE and flag == "ok":
                self.versions[name] = version
                self.versions[f"{package}:{architecture}"] = version
            elif status not in IDLE or flag != "ok":
                self.unfinished[name] = status if flag == "ok" else f"{status}, {flag}"

    def names(self):
        """Names of what is installed, without the spellings with an architecture."""
        return [name for name in self.versions if ":" not in name]


# --- what apt says ---------------------------------------------------------------------------------------------------


def tail(text, lines=TAIL_LINES):
    """The last lines that say something: no progress, no blank ones."""
    noise = re.compile(
        r"^(\(Reading database|Reading |Building |Get:|Hit:|Ign:|Fetched |Selecting previously|Preparing to)"
    )
    kept = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip() and not noise.match(line)]
    return "\n".join(kept[-lines:])


def complaint(text):
    """apt's own errors with the explanation that stands before them (unmet dependencies), else the last lines."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(ERRORS)]
    unmet = []
    for index, line in enumerate(lines):
        if line.startswith(("The following packages have unmet dependencies", "Unsatisfied dependencies:")):
            for following in lines[index + 1 :]:
                if not following.startswith(" "):
                    break
                unmet.append(following.strip())
    return "\n".join([*unmet[-TAIL_LINES:], *errors]) if errors else tail(text)


def parse_simulation(text):
    """What `apt-get --simulate` would do.

    {"install": {name: version}, "remove": [name], "upgrade": {name: [from, to]}, "error": text or None}. A downgrade
    stands under upgrade; the versions tell. `error` is apt's complaint.
    """
    found = {"install": {}, "remove": [], "upgrade": {}, "error": None}
    for line in text.splitlines():
        match = _ACTION.match(line)
        if not match:
            continue
        name = match["name"] if match["arch"] in (None, "any") else f"{match['name']}:{match['arch']}"
        if match["verb"] == "Inst":
            if match["old"] is None:
                found["install"][name] = match["new"] or ""
            else:
                found["upgrade"][name] = [match["old"], match["new"] or ""]
        elif name not in found["remove"]:
            found["remove"].append(name)
    if any(line.startswith(ERRORS) for line in text.splitlines()):
        found["error"] = complaint(text)
    return found


def parse_versions(text):
    """Versions by package out of `apt-cache madison`, best first, each once."""
    found = {}
    for line in text.splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) == 3 and columns[2].endswith("Packages"):
            known = found.setdefault(columns[0], [])
            if columns[1] not in known:
                known.append(columns[1])
    return found


#: What a failed fetch of lists says, and what it means. gpgv speaks the first dialect, sqv (Debian 13) the second.
ANOTHER_KEY = "is not in it: the repository is signed with another key now"
_KEY_TROUBLE = (
    (re.compile(r"EXPKEYSIG (?P<key>[0-9A-F]{8,40})"), "has expired"),
    (re.compile(r"KEYEXPIRED \d+.*?(?P<key>[0-9A-F]{16,40})?"), "has expired"),
    (re.compile(r"REVKEYSIG (?P<key>[0-9A-F]{8,40})"), "was revoked by its owner"),
    (re.compile(r"NO_PUBKEY (?P<key>[0-9A-F]{8,40})"), ANOTHER_KEY),
    (re.compile(r"BADSIG (?P<key>[0-9A-F]{8,40})"), "did not make this signature: the mirror is altered or incomplete"),
    (re.compile(r"Signing key on (?P<key>[0-9A-F]{16,40}) is not .*?[Ee]xpired", re.DOTALL), "has expired"),
    (
        re.compile(r"Signing key on (?P<key>[0-9A-F]{16,40}) is not bound.*?SHA1 is not considered secure", re.DOTALL),
        "is certified with SHA1, which this host believes no longer",
    ),
    (re.compile(r"Missing key (?P<key>[0-9A-F]{16,40})"), ANOTHER_KEY),
)  # fmt: skip


def explain_fetch(text, address, keyring):
    """Why the lists of one repository were not fetched, as a sentence; None when they were.

    Args:
        text: what `apt-get update` said.
        address: URL of the repository as its source names it.
        keyring: the file that holds its keys.
    """
    # apt shows an address without the name and password in it; so do these sentences.
    address = re.sub(r"//[^/@]*@", "//", address)
    ours = re.compile(re.escape(address.rstrip("/")) + r"(?![\w.-])")
    blocks = [block for block in _complaints(text) if ours.search(block)]
    words = "\n".join(blocks)
    for pattern, what in _KEY_TROUBLE:
        match = pattern.search(words)
        if match:
            return (
                f"repository {address}: the signing key {match['key'] or '(unnamed)'} in {keyring} {what}. Nothing "
                "of it is installed. Get the repository's present key from its owner, compare its fingerprint, put it "
                "into the site's keyring with its new sha256, and run again. Hosts that run already are not touched: "
                "nothing on the boot path asks this repository."
            )
    expired = re.search(r"Release file for (\S+) is (expired|not valid yet)([^.]*)", words)
    if expired:
        return (
            f"repository {address}: its index is {expired[2]}{expired[3]}. Sync the mirror, and check the host's clock."
        )
    for block in blocks:
        if block.startswith((*ERRORS, *WARNINGS)):
            said = block.splitlines()[0].partition(": ")[2].strip()
            return (
                f"repository {address}: {said} Is the mirror up, and does it hold this suite? "
                f"`curl -I {address}` on the host tells."
            )
    return None


def _complaints(text):
    """What apt complains about, each with the lines that belong to it: those that are indented."""
    found = []
    inside = False
    for line in text.splitlines():
        if line.startswith((*WARNINGS, *ERRORS, "Err:")) or "GPG error" in line:
            found.append(line)
            inside = True
        elif inside and line.startswith(" "):
            found[-1] += "\n" + line
        else:
            inside = False
    return found


# --- apt itself ------------------------------------------------------------------------------------------------------


class Apt:
    """apt as the host is set up, or aside of it with further files.

    Args:
        files: content by absolute path of files below /etc/apt that are not on the host yet. With them everything
            happens in a folder of its own: lists and caches of the host stay as they are.
    """

    def __init__(self, files=None):
        self.files = dict(files or {})
        self.folder = None
        self.options = []

    def __enter__(self):
        if self.files:
            self.folder = tempfile.mkdtemp(prefix="myriad-apt-")
            os.chmod(self.folder, 0o755)  # noqa: S103 (apt's own user reads the lists)
            self._aside()
        return self

    def __exit__(self, *_error):
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _aside(self):
        parts = {name: os.path.join(self.folder, name) for name in ("sources.list.d", "preferences.d", "keyrings")}
        left_out = ("keyrings", "sources.list.d") if os.path.exists(ALONE) else ("keyrings",)
        for name, folder in parts.items():
            os.makedirs(folder)
            existing = os.path.join("/etc/apt", name)
            if name not in left_out and os.path.isdir(existing):
                for entry in sorted(os.listdir(existing)):
                    if os.path.join(existing, entry) not in self.files:
                        shutil.copy(os.path.join(existing, entry), folder)
        moved = {
            path: os.path.join(parts[os.path.basename(os.path.dirname(path))], os.path.basename(path))
            for path in self.files
        }
        for path, content in self.files.items():
            if os.path.basename(os.path.dirname(path)) == "sources.list.d" and "sources.list.d" in left_out:
                continue
            for old, new in moved.items():
                content = content.replace(old, new)
            with open(moved[path], "w", encoding="utf-8") as stream:
                stream.write(content)
        lists = os.path.join(self.folder, "lists")
        os.makedirs(os.path.join(lists, "partial"))
        for entry in sorted(os.listdir("/var/lib/apt/lists")) if os.path.isdir("/var/lib/apt/lists") else ():
            source = os.path.join("/var/lib/apt/lists", entry)
            if os.path.isfile(source) and entry != "lock":
                os.symlink(source, os.path.join(lists, entry))
        self.options = [
            "-o", f"Dir::Etc::sourceparts={parts['sources.list.d']}",
            "-o", f"Dir::Etc::preferencesparts={parts['preferences.d']}",
            "-o", f"Dir::State::lists={lists}/",
            "-o", f"Dir::Cache={self.folder}/cache/",
            "-o", "Dir::Cache::pkgcache=",
            "-o", "Dir::Cache::srcpkgcache=",
        ]  # fmt: skip

    def fetch(self):
        """Fetch all lists; what apt said. An error is judged by the caller: another repository's is not ours."""
        command = ["apt-get", *APT_OPTIONS, *self.options, "-o", "Acquire::Retries=2", "update"]
        return run(command, timeout=600)[1]

    def versions(self, names):
        """Versions that the repositories have, by package, best first."""
        if not names:
            return {}
        return parse_versions(run(["apt-cache", *self.options, "madison", *sorted(names)], timeout=120)[1])

    def _words(self, packages, remove):
        return [
            *(f"{name}={version}" if version else name for name, version in sorted(packages.items())),
            *(f"{name}-" for name in sorted(remove)),
        ]

    def simulate(self, packages, remove=()):
        """What the transaction would do, by apt."""
        command = [
            "apt-get", *APT_OPTIONS, *self.options, "--simulate", "--no-install-recommends", "--allow-downgrades",
            "--allow-change-held-packages", "install", *self._words(packages, remove),
        ]  # fmt: skip
        code, text = run(command, timeout=300)
        found = parse_simulation(text)
        if code != 0 and found["error"] is None:
            found["error"] = tail(text)
        return found

    def install(self, packages, remove=()):
        """The transaction. Raises PackageError with the last lines that say something."""
        command = [
            "apt-get", *APT_OPTIONS, *self.options, "--yes", "--no-install-recommends", "--allow-downgrades",
            "--allow-change-held-packages", "install", *self._words(packages, remove),
        ]  # fmt: skip
        code, text = run(command)
        if code != 0:
            raise PackageError(f"apt-get ends with {code}:\n{tail(text)}")
        return text


def repair():
    """Finish what an interrupted dpkg left. Returns what it did; raises when it cannot."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        code, text = run(["dpkg", "--force-confdef", "--force-confold", "--configure", "--pending"])
        if code == 0:
            return text
        if not re.search(r"\block(ed)?\b", text) or time.monotonic() > deadline:
            return text
        time.sleep(2)


def hold(names, wanted=True):
    """Hold packages, or let them go."""
    if not names:
        return
    code, text = run(["apt-mark", "hold" if wanted else "unhold", *sorted(names)], timeout=LOCK_TIMEOUT_S)
    if code != 0:
        raise PackageError(f"apt-mark fails: {tail(text)}")


def mark_manual(names):
    """Packages that were asked for are no dependencies that an autoremove may take."""
    if names:
        run(["apt-mark", "manual", *sorted(names)], timeout=LOCK_TIMEOUT_S)


def unforeseen(simulation, packages, remove, kept=()):
    """Everything in a simulated transaction that nobody asked for, as sentences.

    Args:
        simulation: what `parse_simulation` read.
        packages: exact version by name, as asked for; empty where any is right.
        remove: names that are meant to leave.
        kept: names that somebody else holds. apt is told that it may change held packages, for those of the set.
    """
    said = []
    changed = {**simulation["install"], **{name: pair[1] for name, pair in simulation["upgrade"].items()}}
    for name, version in sorted(packages.items()):
        if version and name in changed and changed[name] != version:
            said.append(f"{name} would become {changed[name]}, the lock says {version}")
    for name in sorted(set(simulation["remove"]) - set(remove)):
        said.append(f"{name} would be removed")
    for name in sorted(set(kept) & set(simulation["upgrade"]) - set(packages)):
        said.append(f"{name}, which somebody holds on this host (apt-mark showhold), would become {changed[name]}")
    kernels = [name for name in [*changed, *simulation["remove"]] if KERNEL.match(name) and name not in packages]
    for name in sorted(set(kernels)):
        becomes = "removed" if name in simulation["remove"] else f"changed to {changed[name]}"
        said.append(f"the kernel package {name} would be {becomes}")
    return said


# --- removal of what was recorded ------------------------------------------------------------------------------------


def purge_plan(names):
    """Which of these packages can go without taking another one along: (names to purge, {name: what needs it}).

    apt's own dependency resolution answers, one question when nothing else depends on them.
    """

    def takes(wanted):
        command = ["apt-get", *APT_OPTIONS, "--simulate", "--allow-change-held-packages", "--no-auto-remove", "purge"]
        return set(parse_simulation(run([*command, *sorted(wanted)], timeout=300)[1])["remove"])

    wanted = set(names)
    if not wanted:
        return [], {}
    extra = takes(wanted) - wanted
    if not extra:
        return sorted(wanted), {}
    kept = {}
    for name in sorted(wanted):
        needed = takes({name}) & extra
        if needed:
            kept[name] = ", ".join(sorted(needed))
    left = wanted - set(kept)
    if left and takes(left) & extra:
        return [], dict.fromkeys(sorted(wanted), ", ".join(sorted(extra)))
    return sorted(left), kept


def purge(names):
    """Remove packages with their configuration. Raises PackageError with the last lines."""
    code, text = run(
        ["apt-get", *APT_OPTIONS, "--yes", "--allow-change-held-packages", "--no-auto-remove", "purge", *sorted(names)]
    )
    if code != 0:
        raise PackageError(f"apt-get purge ends with {code}:\n{tail(text)}")
    return text

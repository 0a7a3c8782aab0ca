"""Checks of an image's files and configuration: integrity, size, wheels, secrets, rights, leftovers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from myriad.images.proof_packages import Package
from myriad.images.proof_secrets import in_environment, in_history
from myriad.images.proof_tree import Hidden
from myriad.images.proof_types import Finding, Outcome, Subject, counted, megabytes

_SHOWN = 5

# Patterns of paths that an installer leaves, and what they are.
_LEFTOVERS = (
    ("var/cache/apt/*.bin", "apt's cache"),
    ("*.deb", "Debian packages as downloaded"),
    ("var/lib/apt/lists/*_*", "apt's package lists"),
    ("*/.cache/pip/*", "pip's cache"),
    ("*/.cache/uv/*", "uv's cache"),
    ("*/.conda/pkgs/*", "conda's cache"),
    ("opt/conda/pkgs/*", "conda's cache"),
    ("*/.npm/_cacache/*", "npm's cache"),
    ("*/node_modules/.cache/*", "npm's cache"),
    ("*/.yarn/cache/*", "yarn's cache"),
    ("*/.cargo/registry/*", "cargo's cache"),
    ("*/go/pkg/mod/*", "Go's cache of modules"),
    ("*/.wget-hsts", "wget's list of hosts, which has times in it"),
    ("*/.cache/huggingface/hub/*", "models as downloaded"),
    ("*/.cache/torch/*", "torch's cache"),
    ("var/cache/yum/*", "yum's cache"),
    ("var/cache/dnf/*", "dnf's cache"),
    ("var/cache/ldconfig/aux-cache", "ldconfig's cache, which has times in it"),
    ("var/log/*", "a log of the build"),
    ("*/.git/objects/*", "a git repository"),
    ("tmp/*", "a temporary file of the build"),
    ("var/tmp/*", "a temporary file of the build"),
    ("*.whl", "a wheel as downloaded"),
)


def _left(path: str, pattern: str) -> bool:
    """Does a path fit, also one right below the root (/.cache/pip of a user without a home)?"""
    return fnmatchcase(f"/{path}", pattern if pattern.startswith("*") else f"/{pattern}")


_BUNDLED = ("*/ensurepip/_bundled/*", "usr/share/python-wheels/*")
_TIMED_BYTECODE = 0


def integrity(subject: Subject) -> Outcome:
    """Each layer is what the manifest and the configuration say."""
    findings = tuple(
        Finding(
            "integrity",
            one.partition(":")[0],
            one.partition(": ")[2],
            "the blob was changed or cut; build or copy it again",
        )
        for one in subject.tree.damage
    )
    findings += tuple(
        Finding(
            "integrity",
            f"/{one.file.path}",
            f"layer {one.by + 1} puts a folder where the lower layers have the link /{one.file.path} -> "
            f"{one.file.target}: what was found through the link is gone",
            f"write the files to {one.file.target}, below which they belong",
        )
        for one in subject.tree.hidden
        if one.file.kind == "symlink"
        and not one.deleted
        and one.file.path in subject.tree.files
        and subject.tree.files[one.file.path].kind == "directory"
    )
    return Outcome("integrity", counted(len(subject.image.layers), "layer") + " as the manifest says", findings)


def budget(subject: Subject) -> Outcome:
    """What a node has to pull is within the budget, to the byte; packages that have one are within theirs."""
    declared, size = subject.declared, subject.image.size
    limit = declared.budget_bytes if declared is not None else None
    largest = max(subject.image.layers, key=lambda one: one.size, default=None)
    shown = f"{size:,} bytes in {counted(len(subject.image.layers), 'layer')}"
    if largest is not None:
        shown += f", largest {largest.size:,} ({largest.comment or largest.digest[7:19]})"
    if declared is None or limit is None:
        return Outcome("budget", shown, skipped="no image.yml that sets one")
    findings = []
    if size > limit:
        layers = ", ".join(
            f"{one.comment or one.digest[7:19]} {one.size:,}"
            for one in sorted(subject.image.layers, key=lambda one: -one.size)[:_SHOWN]
        )
        heavy = ", ".join(f"{one.label} {one.size:,}" for one in by_size(subject)[:_SHOWN])
        findings.append(
            Finding(
                "budget",
                f"{declared.where}: budget_mb",
                f"the image is {size:,} bytes, {size - limit:,} over its budget of {limit:,}; "
                f"largest layers: {layers}; largest packages, unpacked: {heavy or 'none'}",
                "leave files out by wheels.exclude, or raise budget_mb and say why",
            )
        )
    for name, most in sorted(declared.package_budgets.items()):
        found = subject.packages.named(name)
        held = sum(one.size for one in found)
        if not found:
            findings.append(
                Finding("budget", f"package_budgets_mb.{name}", f"the image has no package {name}", "remove the row")
            )
        elif held > most:
            findings.append(
                Finding(
                    "budget",
                    found[0].label,
                    f"{found[0].label} is {held:,} bytes unpacked, {held - most:,} over its own budget of {most:,}",
                    "leave files of it out by wheels.exclude, or raise its row in package_budgets_mb",
                )
            )
    return Outcome("budget", f"{shown}; budget {limit:,}", tuple(findings))


def by_size(subject: Subject) -> list[Package]:
    """Packages, the largest first."""
    return sorted(subject.packages.found, key=lambda one: (-one.size, one.name))


def base(subject: Subject) -> Outcome:
    """An external base is named by digest, and is the one that image.yml names."""
    labels = subject.image.labels
    name, digest = (
        labels.get("org.opencontainers.image.base.name", ""),
        labels.get("org.opencontainers.image.base.digest", ""),
    )
    said = subject.declared.base if subject.declared is not None else ""
    where = subject.declared.where if subject.declared is not None else "labels"
    findings = []
    if said and "@sha256:" not in said:
        findings.append(
            Finding(
                "base",
                f"{where}: base",
                f"the base {said} is a tag, which can name other bits tomorrow",
                "name its digest: image@sha256:...",
            )
        )
    if name and not digest and "@sha256:" not in name:
        findings.append(
            Finding(
                "base",
                "org.opencontainers.image.base.name",
                f"the image stands on {name}, and no digest says which bits that was",
                "build it on image@sha256:...; tags of vendor images are rebuilt and deleted",
            )
        )
    known = digest or name.partition("@")[2]
    if said and known and "@sha256:" in said and said.partition("@")[2] != known:
        findings.append(
            Finding(
                "base",
                f"{where}: base",
                f"the image stands on {known[:19]}..., image.yml names {said.partition('@')[2][:19]}...",
                "build the image again",
            )
        )
    shown = said or (f"{name}@{digest}" if digest and "@" not in name else name) or "the project's own file system"
    return Outcome("base", shown, tuple(findings))


def wheels(subject: Subject) -> Outcome:
    """Installed packages are those of the lock, from the files that it allows, and unchanged since."""
    declared = subject.declared
    findings = list(_changed_files(subject))
    packages = subject.packages.python
    without = [one.label for one in packages if one.recorded is None]
    if declared is not None and declared.locked is not None:
        own = [one for one in packages if not _of_base(subject, one)]
        findings += _against_lock(own, declared.locked, declared.wanted, declared.lock_where)
    checked = sum(len(one.recorded or ()) for one in packages)
    detail = f"{counted(len(packages), 'package')} of Python, {checked:,} files by their RECORD"
    if without:
        detail += f"; without one: {len(without)}"
    skipped = "" if declared is not None and declared.locked is not None else "no lock to hold them against"
    return Outcome("wheels", detail, tuple(findings), skipped=skipped if not findings else "")


def _of_base(subject: Subject, package: Package) -> bool:
    """Whether a package came with an external base, of which the image's lock says nothing."""
    base = subject.declared.base if subject.declared is not None else ""
    file = subject.tree.files.get(f"{package.where}/METADATA")
    return bool(base) and file is not None and subject.image.layers[file.layer].comment == f"base {base}"


def _changed_files(subject: Subject) -> Iterator[Finding]:
    for package in subject.packages.python:
        changed = []
        for line in package.recorded or ():
            file = subject.tree.real(line.path)
            if file is not None and line.sha256 and file.kind == "file" and file.sha256 != line.sha256:
                changed.append(f"/{file.path}")
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            yield Finding(
                "wheels",
                changed[0],
                f"{changed[0]}{more} is not what {package.label}'s RECORD says: changed after the wheel was built",
                "install the wheel again; a change of one's own belongs into a wheel of one's own",
            )


def _against_lock(
    packages: list[Package],
    locked: Mapping[tuple[str, str], tuple[str, ...]],
    wanted: frozenset[str],
    where: str,
) -> Iterator[Finding]:
    versions: dict[str, list[str]] = {}
    for name, version in locked:
        versions.setdefault(name, []).append(version)
    for one in packages:
        if one.where.startswith(("usr/lib/python3/", "opt/myriad/src/")):
            continue  # Debian's own, and Myriad's own code: neither comes from the lock of wheels
        if one.name not in versions:
            yield Finding(
                "wheels",
                one.label,
                f"{one.label} is installed, and {where} does not have it",
                "add it to the requirements and lock again",
            )
        elif one.version not in versions[one.name]:
            yield Finding(
                "wheels",
                one.label,
                f"{one.label} is installed, {where} has {' or '.join(sorted(versions[one.name]))}",
                "build the image again, or lock again",
            )
        elif one.sha256 and one.sha256 not in locked[one.name, one.version]:
            allowed = ", ".join(f"{value[:12]}..." for value in locked[one.name, one.version]) or "none"
            yield Finding(
                "wheels",
                one.label,
                f"{one.label} was installed from a file with sha256 {one.sha256[:12]}..., {where} allows {allowed}",
                "somebody changed the lock or the file: find out which before building again",
            )
    installed = {one.name for one in packages}
    for name in sorted(wanted - installed):
        yield Finding(
            "wheels",
            name,
            f"{where} locks {name} {versions[name][0]}, and nothing of it is in the image",
            "build the image again, or lock again",
        )


def secrets(subject: Subject) -> Outcome:
    """No keys, credentials or identities, in what a container sees and in what lower layers still hold."""
    findings = []
    for file in subject.tree.regular():
        findings += [
            Finding(
                "secrets",
                f"/{file.path}",
                f"/{file.path} has {secret}",
                "whoever can pull the image can read it: revoke it, and give it to the job as a Secret",
            )
            for secret in file.secrets
        ]
    for hidden in subject.tree.hidden:
        findings += [
            Finding(
                "secrets",
                f"/{hidden.file.path}",
                f"/{hidden.file.path} has {secret}; {_hides(hidden)} it, "
                f"but layer {hidden.file.layer + 1} still holds it",
                "whoever can pull the image can read every layer: revoke it, and build without it",
            )
            for secret in hidden.file.secrets
        ]
    for name, value in subject.image.env.items():
        findings += [
            Finding(
                "secrets",
                f"Env {name}",
                f"Env {name} has {secret}",
                "pods get it from a Secret by envFrom; revoke this one",
            )
            for secret in in_environment(name, value)
        ]
    for name, value in subject.image.labels.items():
        findings += [
            Finding("secrets", f"label {name}", f"label {name} has {secret}", "revoke it, and build without it")
            for secret in in_environment("", value)
        ]
    for number, line in enumerate(subject.image.config.get("history") or ()):
        findings += [
            Finding(
                "secrets",
                f"history {number + 1}",
                f"the image's history has {secret} (step {number + 1})",
                "revoke it; builds get secrets by a mount, not by an argument",
            )
            for secret in in_history(str(line.get("created_by", "")))
        ]
    looked = sum(1 for _ in subject.tree.regular()) + len(subject.tree.hidden)
    return Outcome("secrets", f"{looked:,} files, environment and history", tuple(findings))


def rights(subject: Subject) -> Outcome:
    """No program gets more rights than who starts it."""
    findings = []
    for path in sorted(subject.tree.files):
        file = subject.tree.files[path]
        kind = _more_rights(file.mode, file.capabilities) if file.kind in ("file", "hardlink") else ""
        if kind:
            findings.append(
                Finding(
                    "setuid",
                    f"/{path}",
                    f"/{path} runs with more rights than who starts it ({kind})",
                    "take the bit away (chmod a-s, setcap -r), or say in proof.yml why it is needed",
                )
            )
        elif file.kind == "device":
            findings.append(
                Finding("setuid", f"/{path}", f"/{path} is a device file; the runtime makes those", "leave it out")
            )
        elif file.kind == "file" and file.mode & 0o002:
            findings.append(
                Finding("setuid", f"/{path}", f"/{path} can be written by everybody", "take the right away: chmod o-w")
            )
    for hidden in subject.tree.hidden:
        kind = _more_rights(hidden.file.mode, hidden.file.capabilities)
        if kind:
            findings.append(
                Finding(
                    "setuid",
                    f"/{hidden.file.path}",
                    f"/{hidden.file.path} ({kind}): {_hides(hidden)} it; layer {hidden.file.layer + 1} still holds it, "
                    "where scanners and whoever unpacks that layer see it",
                    "leave it out of the lower layer",
                    "note",
                )
            )
    return Outcome("setuid", "no setuid, setgid, capabilities or device files" if not findings else "", tuple(findings))


def _hides(hidden: Hidden) -> str:
    return f"layer {hidden.by + 1} {'deletes' if hidden.deleted else 'replaces'}"


def _more_rights(mode: int, capabilities: bool) -> str:
    words = []
    if mode & 0o4000:
        words.append("setuid")
    if mode & 0o2000 and mode & 0o010:
        words.append("setgid")
    if capabilities:
        words.append("file capabilities")
    return ", ".join(words)


def leftovers(subject: Subject) -> Outcome:
    """No caches, logs, downloads or bytecode with times in it: weight, and another digest on every build."""
    held: dict[str, list[tuple[str, int]]] = {}
    for file in subject.tree.regular():
        for pattern, what in _LEFTOVERS:
            if _left(file.path, pattern) and not any(fnmatchcase(file.path, one) for one in _BUNDLED):
                if not (what == "a log of the build" and not file.size):
                    held.setdefault(what, []).append((file.path, file.size))
                break
    findings = []
    for what, files in sorted(held.items()):
        total = sum(size for _path, size in files)
        findings.append(
            Finding(
                "leftovers",
                f"/{files[0][0]}",
                f"{what}: {counted(len(files), 'file')}, {megabytes(total)}, such as /{files[0][0]}",
                "remove it in the step that makes it; deleted later it stays in the layer",
            )
        )
    hidden = sum(
        one.file.size for one in subject.tree.hidden if any(_left(one.file.path, pattern) for pattern, _ in _LEFTOVERS)
    )
    if hidden:
        findings.append(
            Finding(
                "leftovers",
                "lower layers",
                f"{megabytes(hidden)} of caches and logs are deleted by upper layers and still pulled by every node",
                "remove them in the step that makes them",
                "note",
            )
        )
    timed = [
        file.path
        for file in subject.tree.regular()
        if file.path.endswith(".pyc")
        and len(file.head) >= 16
        and int.from_bytes(file.head[4:8], "little") == _TIMED_BYTECODE
    ]
    if timed:
        findings.append(
            Finding(
                "leftovers",
                f"/{timed[0]}",
                f"{counted(len(timed), 'file')} of bytecode with the time of the build, such as /{timed[0]}: "
                "another digest on every build, and Python compiles again where the times differ",
                "compile with --invalidation-mode unchecked-hash",
            )
        )
    return Outcome("leftovers", "no caches, logs or bytecode with times" if not findings else "", tuple(findings))


def configuration(subject: Subject) -> Outcome:
    """The image starts as image.yml says, and not as root by accident."""
    declared, runtime = subject.declared, subject.image.runtime
    user = str(runtime.get("User") or "")
    if declared is None:
        return Outcome("config", f"user {user or 'root'}", skipped="no image.yml to hold it against")
    findings = []

    def differs(key: str, found: object, said: object) -> None:
        findings.append(
            Finding(
                "config",
                f"{declared.where}: {key}",
                f"{key} is {found!r} in the image, {said!r} in image.yml",
                "build the image again",
            )
        )

    config = subject.image.config
    platform = f"{config.get('os') or 'linux'}/{config.get('architecture') or 'amd64'}"
    if platform != "linux/amd64":
        findings.append(
            Finding(
                "config",
                "architecture",
                f"the image says that it is for {platform}; its nodes are linux/amd64 and do not pull it",
                "build or copy the one for linux/amd64",
            )
        )
    if declared.user is not None and user != declared.user:
        differs("user", user or "root", declared.user)
    if declared.entrypoint is not None and tuple(runtime.get("Entrypoint") or ()) != declared.entrypoint:
        differs("entrypoint", runtime.get("Entrypoint") or [], list(declared.entrypoint))
    env = subject.image.env
    for name, value in declared.env.items():
        if env.get(name) != value:
            differs(f"env.{name}", env.get(name, "not set"), value)
    for name, value in declared.labels.items():
        if subject.image.labels.get(name) != value:
            differs(f"labels.{name}", subject.image.labels.get(name, "not set"), value)
    start = (*(runtime.get("Entrypoint") or ()), *(runtime.get("Cmd") or ()))
    if start and not _startable(subject, str(start[0])):
        findings.append(
            Finding(
                "config",
                "Entrypoint",
                f"the entrypoint {start[0]!r} is not in the image, or may not be run",
                "name a program of the image",
            )
        )
    return Outcome("config", f"user {user or 'root'}, starts {' '.join(map(str, start)) or 'nothing'}", tuple(findings))


def _startable(subject: Subject, program: str) -> bool:
    folders = (
        [""]
        if "/" in program
        else [*subject.image.env.get("PATH", "").split(":"), "/usr/local/bin", "/usr/bin", "/bin"]
    )
    for folder in folders:
        file = subject.tree.real(f"{folder}/{program}".strip("/"))
        if file is not None and file.kind == "file" and file.mode & 0o111:
            return True
    return not re.fullmatch(r"[\w./+-]+", program)

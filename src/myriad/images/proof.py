"""The proof after a build: what an image holds, against image.yml, the lock and the rules that every image keeps.

    report = prove(open_image(Path("dist/pytorch")), declared_of(Path("images/pytorch")))
    report.ok, report.findings

Everything here is read from the layout on disk; nothing of the image is run. `proof_run` does that.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from myriad.errors import InputError
from myriad.images import proof_cuda, proof_files
from myriad.images.compat import image_facts
from myriad.images.context import find_repository
from myriad.images.definition import ExternalBase, ImageDefinition, OwnBase, load_definition
from myriad.images.proof_layout import LayoutImage
from myriad.images.proof_loader import loading
from myriad.images.proof_packages import locked_hashes, normalised, read_packages
from myriad.images.proof_rules import Applied, ProofRules, apply_rules, load_rules
from myriad.images.proof_tree import read_tree
from myriad.images.proof_types import Declared, Finding, Outcome, Subject, as_json

#: In the order in which they are told: what everything rests on first.
CHECKS: tuple[Callable[[Subject], Outcome], ...] = (
    proof_files.integrity,
    proof_files.base,
    proof_files.budget,
    proof_files.wheels,
    proof_cuda.pins,
    proof_cuda.generation,
    proof_cuda.one_copy,
    proof_cuda.resolvable,
    proof_cuda.driver_libraries,
    proof_cuda.architectures,
    proof_cuda.environment_versions,
    proof_cuda.requirement,
    proof_files.secrets,
    proof_files.rights,
    proof_files.leftovers,
    proof_files.configuration,
)

Locked = dict[tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Report:
    """What a proof found. `subject` is what was looked at."""

    subject: Subject
    applied: Applied

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Of each check, after exceptions."""
        return self.applied.outcomes

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What fails the proof."""
        return tuple(one for outcome in self.outcomes for one in outcome.findings if one.severity == "error")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is told and fails nothing."""
        return tuple(one for outcome in self.outcomes for one in outcome.findings if one.severity == "note")

    @property
    def ok(self) -> bool:
        """Whether the image is proven."""
        return not self.findings

    def document(self) -> dict[str, Any]:
        """For JSON."""
        image = self.subject.image
        return {
            "image": image.ref,
            "digest": image.digest,
            "ok": self.ok,
            "size_bytes": image.size,
            "layers": [
                {"digest": layer.digest, "size_bytes": layer.size, "unpacked_bytes": unpacked, "holds": layer.comment}
                for layer, unpacked in zip(image.layers, self.subject.tree.tar_sizes, strict=True)
            ],
            "packages": [
                {"kind": one.kind, "name": one.name, "version": one.version, "unpacked_bytes": one.size}
                for one in proof_files.by_size(self.subject)
            ],
            "unowned_bytes": self.subject.packages.unowned,
            "checks": [as_json(one) for one in self.outcomes],
            "accepted": [
                {**finding.as_dict(), "reason": rule.reason, "until": rule.until.isoformat()}
                for finding, rule in self.applied.accepted
            ],
            "unused_exceptions": [
                {"rule": one.rule, "path": one.path, "until": one.until.isoformat()} for one in self.applied.unused
            ],
        }


def look(
    image: LayoutImage,
    declared: Declared | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Subject:
    """Read an image once; what the checks look at.

    Args:
        image: the image.
        declared: what image.yml says; None checks what holds for every image.
        progress: told after each layer how many of how many are read.
    """
    tree = read_tree(image, progress=progress)
    reach = loading(tree, image.env, cwd=str(image.runtime.get("WorkingDir") or "/"))
    return Subject(image, tree, read_packages(tree), reach, declared)


def prove(subject: Subject, rules: ProofRules | None = None, *, today: date, more: Iterable[Outcome] = ()) -> Report:
    """Run all checks.

    Args:
        subject: from `look`.
        rules: exceptions; those that have ended accept nothing.
        today: for their end.
        more: outcomes of what was run in a container.
    """
    outcomes = [*(check(subject) for check in CHECKS), *more]
    return Report(subject, apply_rules(outcomes, rules or ProofRules(), today))


def declared_of(
    folder: Path, definition: ImageDefinition | None = None
) -> tuple[Declared, ProofRules, ImageDefinition]:
    """What the folder of an image says: image.yml, the lock of its wheels, proof.yml.

    Args:
        folder: the folder.
        definition: a variant of its matrix; by default image.yml.

    Raises:
        InputError: one of them is wrong or missing.
    """
    definition = definition or load_definition(folder)
    rules = load_rules(folder)
    where = f"{folder}/image.yml"
    facts = image_facts(definition, folder.name, python=definition.python_version)
    locked, wanted, lock_where = _locks(folder, definition, (folder,))
    return (
        Declared(
            where=where,
            pins=dict(definition.pins) or _pins_of_gpu(definition),
            archs=definition.gpu.archs if definition.gpu is not None else (),
            cuda_compat=definition.gpu is not None and definition.gpu.cuda_compat,
            facts=facts,
            budget_bytes=definition.budget_mb * 10**6,
            package_budgets={normalised(name): int(mb * 10**6) for name, mb in rules.package_budgets_mb.items()},
            base=definition.base.image if isinstance(definition.base, ExternalBase) else "",
            user=definition.user,
            entrypoint=definition.entrypoint,
            env=definition.env,
            labels=definition.labels,
            locked=locked,
            wanted=wanted,
            lock_where=lock_where,
        ),
        rules,
        definition,
    )


def _pins_of_gpu(definition: ImageDefinition) -> dict[str, str]:
    gpu = definition.gpu
    if gpu is None:
        return {}
    return {name: value for name in ("torch", "cuda", "cudnn", "nccl") if (value := getattr(gpu, name))}


def _locks(
    folder: Path, definition: ImageDefinition, seen: tuple[Path, ...]
) -> tuple[Locked | None, frozenset[str], str]:
    """Files that the locks of an image and of the images below it allow; names that must be there; the lock's name."""
    locked: Locked | None = None
    wanted: frozenset[str] = frozenset()
    where = ""
    if isinstance(definition.base, OwnBase):
        below = folder.parent / definition.base.name
        if below in seen:
            raise InputError(f"base {definition.base.name} stands on this image", where=f"{folder}/image.yml")
        locked, wanted, where = _locks(below, load_definition(below), (*seen, below))
    wheels = definition.wheels
    if wheels is None:
        return locked, wanted, where
    if wheels.lock is not None:
        path = folder / wheels.lock
        if not path.is_file():
            raise InputError(
                "the lock of the wheels is missing", where=str(path), hint=f"`myriad image lock {folder.name}`"
            )
        text = path.read_text(encoding="utf-8")
        own: Locked = locked_hashes(text)
        must = frozenset(name for name, _ in locked_hashes("\n".join(_unconditional(text))))
        return {**(locked or {}), **own}, wanted | must, str(path)
    beside = folder.resolve().parent.parent / "uv.lock"
    path = beside if beside.is_file() else find_repository() / "uv.lock"
    return {**(locked or {}), **uv_hashes(path)}, wanted, str(path)


def _unconditional(text: str) -> list[str]:
    """Requirements that are installed on every machine: without an environment marker."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if ";" not in line.partition("--hash")[0]]


def uv_hashes(path: Path) -> Locked:
    """What uv.lock allows. Raises InputError where it is missing."""
    if not path.is_file():
        raise InputError(
            "uv.lock is missing", where=str(path.parent), hint="verify in a checkout, or without image.yml"
        )
    found: Locked = {}
    for package in tomllib.loads(path.read_text(encoding="utf-8")).get("package", ()):
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        hashes = {str(one["hash"]).removeprefix("sha256:") for one in files if "hash" in one}
        if "version" in package:
            found[normalised(package["name"]), str(package["version"])] = tuple(sorted(hashes))
    return found

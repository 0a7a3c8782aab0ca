"""Manifests of other projects, changed where a site needs them otherwise: rendered by the locked kubectl.

A kustomization says in a format that people know what is changed in files that stay as their project made them. It
is kubectl's own (`kubectl kustomize`), which speaks to no cluster:
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/kustomization/
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from myriad.errors import InputError, MyriadError

TIMEOUT_S = 120


class KustomizationError(MyriadError):
    """kubectl did not render a kustomization; the message holds what it said."""


def render(program: Path, text: str, *, files: Mapping[str, Path], name: str) -> str:
    """Every object of a kustomization, as YAML documents.

    Args:
        program: kubectl.
        text: the kustomization, as YAML.
        files: what it names under `resources`: a file by its name there, or a folder by `NAME/`, which is unpacked
            from the tar archive that holds it under that name.
        name: what it is of, for messages.

    Raises:
        InputError: kubectl or a file is not there, or an archive does not hold its folder.
        KustomizationError: kubectl refused it.
    """
    for path, what in ((program, "kubectl"), *((path, f"{key} of it") for key, path in files.items())):
        if not path.exists():
            raise InputError(
                f"{what} is not at {path}", hint="`myriad bundle verify` names what the bundle lacks", where=name
            )
    with tempfile.TemporaryDirectory(prefix="myriad-kustomize-") as folder:
        root = Path(folder)
        for key, path in files.items():
            if key.endswith("/"):
                _unpack(path, root, key.rstrip("/"), name=name)
            else:
                # A copy: kustomize follows no link out of its folder.
                shutil.copyfile(path, root / key)
        (root / "kustomization.yaml").write_text(text, encoding="utf-8")
        return _run([str(program), "kustomize", folder], name=name)


def _unpack(archive: Path, root: Path, folder: str, *, name: str) -> None:
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{archive} cannot be unpacked: {error}", where=name) from error
    if not (root / folder).is_dir():
        raise InputError(f"{archive} holds no folder {folder}", where=name, hint="build the bundle again")


def _run(command: list[str], *, name: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise KustomizationError(f"kubectl did not render it within {TIMEOUT_S} s", where=name) from error
    except OSError as error:
        raise KustomizationError(f"{command[0]} cannot be run: {error.strerror}", where=name) from error
    if done.returncode != 0:
        said = "\n  ".join(done.stderr.strip().splitlines()[-10:])
        raise KustomizationError(
            f"kubectl does not render the kustomization:\n  {said}",
            where=name,
            hint="a patch that finds nothing to change means that the manifests are of another version",
        )
    return done.stdout

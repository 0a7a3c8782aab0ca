"""The lab's own programs and kubeconfig for a shell: `.lab/env` and `.lab/bin`. ~/.kube/config is never looked at."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from myriad.lab.state import LabPaths, atomic_write


def env_text(paths: LabPaths) -> str:
    """A file to source in sh, dash, bash or zsh, from anywhere, any number of times."""
    bin_dir = shlex.quote(str(paths.bin))
    return f"""# Made by `make lab`; source it: . {paths.env.relative_to(paths.clone)}
# myriad, kubectl and helm of this lab, and its own kubeconfig. Nothing outside this shell changes.
case ":$PATH:" in
  *:{bin_dir}:*) ;;
  *) PATH={bin_dir}:$PATH; export PATH ;;
esac
KUBECONFIG={shlex.quote(str(paths.kubeconfig))}; export KUBECONFIG
KUBECACHEDIR={shlex.quote(str(paths.kube_cache))}; export KUBECACHEDIR
MYRIAD_INVENTORY={shlex.quote(str(paths.inventory))}; export MYRIAD_INVENTORY
"""


def write_env(paths: LabPaths, programs: dict[str, Path]) -> None:
    """Write `.lab/env` and `.lab/bin`.

    Args:
        paths: the lab's files.
        programs: name -> file of programs to offer (kubectl, helm); the file of a bundle has no execute bit.
    """
    paths.make()
    wrapper = f'#!/bin/sh\nexec {shlex.quote(str(Path(sys.executable).with_name("myriad")))} "$@"\n'
    atomic_write(paths.bin / "myriad", wrapper, mode=0o755)
    for name, source in programs.items():
        target = paths.bin / name
        if not target.exists() or target.stat().st_size != source.stat().st_size:
            temporary = target.with_name(f".{name}.new")
            shutil.copyfile(source, temporary)
            temporary.chmod(0o755)
            temporary.replace(target)
    atomic_write(paths.env, env_text(paths))

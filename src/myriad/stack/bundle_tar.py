"""A bundle as one tar: the same bundle gives the same bytes, wherever and whenever it is written.

Plain, not compressed: layers, charts and packages are compressed already. bundle.yml comes first, so that a reader
knows what to expect; then blobs in the order of their digests. Owners, times and modes are fixed.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

from myriad.errors import MyriadError
from myriad.stack.bundle import MANIFEST, Bundle, manifest_bytes


def write_tar(bundle: Bundle, out: Path, on_progress: Callable[[int, int], None] = lambda done, total: None) -> int:
    """Write a bundle into `out`, which appears when it is whole. Returns its bytes.

    Raises:
        MyriadError: a blob is missing or has another size, or the disk does not take it.
    """
    blobs = sorted({blob.sha256: blob.size for _, blob in bundle.blobs()}.items())
    total, done = sum(size for _, size in blobs), 0
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        # GNU format: sizes above 8 GiB without extended headers, which carry times.
        with tarfile.open(temporary, "w", format=tarfile.GNU_FORMAT) as tar:
            data = manifest_bytes(bundle.manifest)
            tar.addfile(_info(MANIFEST, len(data), 0o644), io.BytesIO(data))
            for digest, size in blobs:
                path = bundle.path(digest)
                if not path.is_file() or path.stat().st_size != size:
                    raise MyriadError(
                        "the bundle lacks a file, or it has another size",
                        where=str(path),
                        hint=f"`myriad bundle verify {bundle.directory}` names it",
                    )
                with path.open("rb") as stream:
                    tar.addfile(_info(f"sha256/{digest[:2]}/{digest}", size, 0o555), stream)
                done += size
                on_progress(done, total)
        temporary.replace(out)
    except OSError as error:
        raise MyriadError(f"the tar could not be written: {error.strerror}", where=str(out)) from error
    finally:
        temporary.unlink(missing_ok=True)
    return out.stat().st_size


def _info(name: str, size: int, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, mode, 0
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info

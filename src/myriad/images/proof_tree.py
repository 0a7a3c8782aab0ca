"""The files of an image: its layers read once from the lowest to the highest, as a runtime would unpack them.

What an upper layer deletes or replaces is gone from the container, not from the image: `hidden` keeps it. All that a
check needs of a file's content is taken while the layer is at hand: its sha256, what an ELF file says of itself, the
text of the few files that describe the image, and secrets.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import IO, Any, cast

import zstandard

from myriad.errors import InputError
from myriad.images.proof_elf import Elf, read_elf
from myriad.images.proof_layout import LayoutImage, LayoutLayer
from myriad.images.proof_secrets import MOST_TOKENS, OVERLAP, Secret, in_bytes, in_file, wants_content

_CHUNK = 1 << 20
_MOST_KEPT = 32 << 20
"""A text of the image is kept up to this size; RECORD of the largest package has some MB."""

_KEPT = (
    "*.dist-info/METADATA", "*.dist-info/RECORD", "*.dist-info/WHEEL", "*.egg-info/PKG-INFO", "*.egg-info",
    "*/torch/version.py",
    "etc/*.conf", "etc/ld.so.*", "usr/lib/os-release", "etc/os-release", "etc/debian_version",
    "var/lib/dpkg/status", "var/lib/dpkg/status.d/*", "var/lib/dpkg/info/*.list",
    "*.dist-info/provenance_url.json",
)  # fmt: skip


_NCCL = re.compile(rb"NCCL version (\d+\.\d+\.\d+(?:\+cuda\d+\.\d+)?)")


@dataclass(frozen=True, slots=True)
class TreeFile:
    """One path of the image.

    Attributes:
        path: without a leading slash.
        kind: `file`, `directory`, `symlink`, `hardlink` or `device`.
        mode: permission bits with setuid, setgid and sticky.
        size: bytes of content.
        layer: number of the layer that it comes from, 0 the lowest.
        target: of a link, as it is written (a hard link's is a path of the image).
        sha256: of the content, hexadecimal; empty for what is no file.
        elf: what a library or program says of itself.
        text: the content, of files that describe the image.
        head: first bytes.
        secrets: found in it.
        nccl: the version that NCCL's library names inside, with its CUDA.
        capabilities: it carries file capabilities, which are a setuid bit by another name.
    """

    path: str
    kind: str
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    size: int = 0
    layer: int = 0
    target: str = ""
    sha256: str = ""
    elf: Elf | None = None
    text: bytes | None = None
    head: bytes = b""
    secrets: tuple[Secret, ...] = ()
    nccl: str = ""
    capabilities: bool = False


@dataclass(frozen=True, slots=True)
class Hidden:
    """A file of a lower layer that a container does not see: `by` is the layer that deleted or replaced it."""

    file: TreeFile
    by: int
    deleted: bool


@dataclass(slots=True)
class ImageTree:
    """All files. `tar_sizes` are bytes of each layer's unpacked stream; `damage` names blobs that are not what the
    manifest says."""

    files: dict[str, TreeFile] = field(default_factory=dict)
    hidden: list[Hidden] = field(default_factory=list)
    tar_sizes: list[int] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    _below: dict[str, set[str]] = field(default_factory=dict)

    def resolve(self, path: str) -> str:
        """The path behind all symbolic links, also of the folders above it; of a loop, the path itself."""
        done: list[str] = []
        todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        hops = 0
        while todo:
            part = todo.pop()
            if part == "..":
                del done[-1:]
                continue
            done.append(part)
            here = self.files.get("/".join(done))
            if here is not None and here.kind == "symlink":
                hops += 1
                if hops > 40:
                    return path
                if here.target.startswith("/"):
                    done = []
                else:
                    done.pop()
                todo += [part for part in reversed(here.target.split("/")) if part not in ("", ".")]
        return "/".join(done)

    def real(self, path: str) -> TreeFile | None:
        """The file behind a path, links followed."""
        found = self.files.get(self.resolve(path))
        return self.files.get(found.target) if found is not None and found.kind == "hardlink" else found

    def text(self, path: str) -> str:
        """The text of a file that describes the image; empty where it is not there."""
        found = self.real(path)
        return found.text.decode(errors="replace") if found is not None and found.text is not None else ""

    def matching(self, pattern: str) -> Iterator[TreeFile]:
        """Files by a pattern of their whole path (`*` spans folders), sorted."""
        for path in sorted(self.files):
            if fnmatchcase(path, pattern):
                yield self.files[path]

    def regular(self) -> Iterator[TreeFile]:
        """Regular files, sorted by path."""
        for path in sorted(self.files):
            if self.files[path].kind == "file":
                yield self.files[path]

    # While layers are read

    def put(self, file: TreeFile) -> None:
        """Add a path of the layer that is being read."""
        before = self.files.get(file.path)
        if before is not None and before.kind != "directory":
            self.hidden.append(Hidden(before, file.layer, deleted=False))
        elif before is not None and file.kind != "directory":
            self.remove(file.path, by=file.layer)
        self.files[file.path] = file
        self._register(file.path)

    def remove(self, path: str, *, by: int) -> None:
        """Delete a path with everything below it, as a whiteout does; what `by` itself put there stays."""
        for child in sorted(self._below.get(path, ())):
            self.remove(child, by=by)
        here = self.files.get(path)
        if here is not None and here.layer < by:
            del self.files[path]
            if here.kind != "directory":
                self.hidden.append(Hidden(here, by, deleted=True))
            parent = path.rpartition("/")[0]
            self._below.get(parent, set()).discard(path)

    def children(self, path: str) -> list[str]:
        """Paths directly below a folder."""
        return sorted(self._below.get(path, ()))

    def _register(self, path: str) -> None:
        while path:
            parent = path.rpartition("/")[0]
            if path in self._below.setdefault(parent, set()):
                return
            self._below[parent].add(path)
            path = parent


def read_tree(
    image: LayoutImage,
    *,
    contents: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ImageTree:
    """Read all layers of an image.

    Args:
        image: the image.
        contents: also look into every file. Without it only the texts that describe the image are read, which is what
            a list of its packages needs: a fifth of the time.
        progress: told after each layer how many of how many are read.

    Raises:
        InputError: a layer is no tar stream in gzip, zstd or as it is.
    """
    tree = ImageTree()
    for number, layer in enumerate(image.layers):
        held = layer.path.stat().st_size
        cut = f"it has {held:,} bytes, the manifest says {layer.size:,}" if held != layer.size else ""
        if cut:
            tree.damage.append(f"layer {number + 1}: {cut}")
        try:
            if contents:
                with tempfile.TemporaryFile(prefix="myriad-layer-") as plain:
                    _unpack(layer, number, plain, tree)
                    _read_layer(plain, number, tree)
            else:
                with layer.path.open("rb") as raw:
                    counted = _Counting(_decompressed(io.BufferedReader(raw, _CHUNK)))
                    _read_layer(cast(IO[bytes], counted), number, tree, contents=False)
                    tree.tar_sizes.append(counted.size)
        except (OSError, EOFError, zstandard.ZstdError) as error:
            raise InputError(
                "; ".join(filter(None, (f"layer {number + 1} cannot be decompressed: {error}", cut))),
                where=str(layer.path),
                hint="the blob is cut or damaged; take the layout from its source again",
            ) from error
        except tarfile.TarError as error:
            raise InputError(
                "; ".join(filter(None, (f"layer {number + 1} is no tar stream: {error}", cut))),
                where=str(layer.path),
                hint="the blob is cut, damaged or of another kind; take the layout from its source again",
            ) from error
        progress(number + 1, len(image.layers))
    return tree


def _decompressed(reader: io.BufferedReader[Any]) -> IO[bytes]:
    """The stream inside, by its first bytes: a media type may say anything."""
    head = reader.peek(4)[:4]
    if head == b"\x28\xb5\x2f\xfd":
        return cast(IO[bytes], zstandard.ZstdDecompressor().stream_reader(reader, read_across_frames=True))
    if head[:2] == b"\x1f\x8b":
        return cast(IO[bytes], gzip.GzipFile(fileobj=reader))
    return reader


def _unpack(layer: LayoutLayer, number: int, plain: IO[bytes], tree: ImageTree) -> None:
    """The tar stream of a layer into a file, with both digests checked on the way."""
    outer, inner, size = hashlib.sha256(), hashlib.sha256(), 0
    with layer.path.open("rb") as raw:
        reader = io.BufferedReader(_Hashing(raw, outer), _CHUNK)
        stream = _decompressed(reader)
        while chunk := stream.read(_CHUNK):
            inner.update(chunk)
            plain.write(chunk)
            size += len(chunk)
        while reader.read(_CHUNK):
            # Bytes behind the compressed stream count for the digest.
            continue
    tree.tar_sizes.append(size)
    for what, hashed, said in (("bytes", outer, layer.digest), ("content", inner, layer.diff_id)):
        digest = f"sha256:{hashed.hexdigest()}"
        if digest != said:
            tree.damage.append(
                f"layer {number + 1}: the digest of its {what} is {digest[:19]}..., the image says {said[:19]}..."
            )
    plain.seek(0)


class _Hashing(io.RawIOBase):
    """Passes bytes on and hashes them."""

    def __init__(self, file: IO[bytes], value: hashlib._Hash) -> None:
        self._file, self._value = file, value

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(len(buffer))
        self._value.update(data)
        buffer[: len(data)] = data
        return len(data)


class _Counting(io.RawIOBase):
    """Passes bytes on and counts them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.size = file, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.size += len(data)
        return data


def _read_layer(plain: IO[bytes], number: int, tree: ImageTree, *, contents: bool = True) -> None:
    with tarfile.open(fileobj=plain, mode="r:" if contents else "r|", bufsize=_CHUNK) as tar:
        for member in tar:
            path = layer_path(tree, member.name)
            if not path:
                continue
            parent, _, base = path.rpartition("/")
            if base == ".wh..wh..opq":
                for child in tree.children(parent):
                    tree.remove(child, by=number)
                continue
            if base.startswith(".wh."):
                tree.remove(f"{parent}/{base[4:]}" if parent else base[4:], by=number)
                continue
            tree.put(_entry(tar, member, path, number, tree, contents=contents))


def layer_path(tree: ImageTree, name: str) -> str:
    """Where a member of a layer's tar stream lands; empty for the root itself.

    A lower layer may have made a link of a folder above it (bin -> usr/bin); a runtime follows that.
    """
    parent, _, base = _clean(name).rpartition("/")
    parent = tree.resolve(parent) if parent else ""
    return f"{parent}/{base}" if parent else base


def _entry(
    tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, number: int, tree: ImageTree, *, contents: bool
) -> TreeFile:
    mode = stat.S_IMODE(member.mode)
    plain = TreeFile(path, "device", mode=mode, uid=member.uid, gid=member.gid, layer=number)
    if member.isdir():
        return replace(plain, kind="directory")
    if member.issym():
        return replace(plain, kind="symlink", target=member.linkname)
    if member.islnk():
        return replace(plain, kind="hardlink", target=tree.resolve(_clean(member.linkname)))
    content = tar.extractfile(member) if member.isfile() else None
    if content is None:
        return plain
    capable = any("security.capability" in key for key in member.pax_headers)
    file = replace(plain, kind="file", size=member.size, capabilities=capable)
    if contents:
        return _content(content, file)
    describes = member.size <= _MOST_KEPT and any(fnmatchcase(path, one) for one in _KEPT)
    return replace(file, text=content.read()) if describes else file


def _content(file: IO[bytes], plain: TreeFile) -> TreeFile:
    """The file with what its content says."""
    hashed, found, kept, nccl = hashlib.sha256(), dict[Secret, None](), list[bytes](), ""
    describes = any(fnmatchcase(plain.path, one) for one in _KEPT)
    keep = plain.size <= _MOST_KEPT and (describes or wants_content(plain.path))
    head = file.read(64)
    is_elf = head.startswith(b"\x7fELF")
    keys_only = is_elf or plain.size > MOST_TOKENS
    names_nccl = "libnccl" in plain.path.rpartition("/")[2]
    file.seek(0)
    tail = b""
    while chunk := file.read(_CHUNK):
        hashed.update(chunk)
        if keep:
            kept.append(chunk)
        window = tail + chunk if tail else chunk
        for secret in in_bytes(window, keys_only=keys_only):
            found[secret] = None
        if names_nccl and not nccl and (match := _NCCL.search(window)):
            nccl = match[1].decode()
        tail = chunk[-OVERLAP:]
    text = b"".join(kept) if keep else None
    if text is not None and wants_content(plain.path):
        for secret in in_file(plain.path, text):
            found[secret] = None
    return replace(
        plain,
        sha256=hashed.hexdigest(),
        elf=read_elf(file) if is_elf else None,
        text=text if describes else None,
        head=head[:16],
        secrets=tuple(found),
        nccl=nccl,
    )


def _clean(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise tarfile.ReadError(f"{name!r} climbs out of the image")
    return "/".join(parts)

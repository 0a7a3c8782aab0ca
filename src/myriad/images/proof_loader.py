"""Which copies of CUDA's libraries a process of the image can load, and by whose word. Pure.

The order is ld.so(8)'s: DT_RPATH of the library that asks (where it has no DT_RUNPATH), LD_LIBRARY_PATH, DT_RUNPATH,
/etc/ld.so.cache, the default folders; LD_PRELOAD and /etc/ld.so.preload before all. In each folder, what lies below
glibc-hwcaps for the processor comes first; nothing between two colons of LD_LIBRARY_PATH is the working folder.
torch also loads the libraries of NVIDIA's wheels by their path (`nvidia/*/lib`) before anything asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from posixpath import dirname, join, normpath

from myriad.images.proof_elf import Elf
from myriad.images.proof_tree import ImageTree, TreeFile

_STEMS = (
    r"cudart|cublas|cublasLt|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|cusparseLt|nvrtc|nvrtc-builtins|nvJitLink|"
    r"cudnn\w*|nccl|nccl-net|nvshmem_host|cufile|cufile_rdma|cupti|nvToolsExt|nvjpeg|npp\w+|"
    r"torch|torch_cpu|torch_cuda|torch_python|c10|c10_cuda"
)
_LIBRARY = re.compile(rf"lib(?P<stem>{_STEMS})(?:-[0-9a-f]{{8}})?\.so(?:\.(?P<version>[\d.]+))?")
_DRIVER = re.compile(r"lib(cuda|nvidia-ml|nvidia-ptxjitcompiler|nvidia-nvvm|nvcuvid)\.so(\.[\d.]+)?")
_DEFAULT = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib")
_WHEELS = re.compile(r".*/nvidia/[^/]+/lib")
_HWCAPS = tuple(f"glibc-hwcaps/x86-64-v{level}" for level in (4, 3, 2))
_STUBS = re.compile(r".*/stubs(/.*)?")


@dataclass(slots=True)
class Copy:
    """One file that is a CUDA library, and by whose word it is loaded; `reached` is empty where nobody's."""

    file: TreeFile
    stem: str
    soname: str
    reached: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Where it lies."""
        return f"/{self.file.path}"


@dataclass(slots=True)
class Loading:
    """What can be loaded.

    Attributes:
        copies: of each library by its name without version (`libnccl`).
        driver: libraries of a driver inside the image; they hide the node's.
        missing: (library that asks, CUDA library that nothing answers for).
        search: folders in the loader's order, with who names them.
    """

    copies: dict[str, list[Copy]] = field(default_factory=dict)
    driver: list[TreeFile] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    search: list[tuple[str, str]] = field(default_factory=list)


def loading(tree: ImageTree, env: dict[str, str], *, cwd: str = "/") -> Loading:
    """Look at every library of an image.

    Args:
        tree: its files.
        env: its environment.
        cwd: the folder that it starts in.
    """
    found = Loading(search=list(_search(tree, env, cwd)))
    elves = {file.path: file.elf for file in tree.regular() if file.elf is not None}
    for path, elf in elves.items():
        name = path.rpartition("/")[2]
        match = _LIBRARY.fullmatch(elf.soname) or _LIBRARY.fullmatch(name)
        if match:
            copy = Copy(tree.files[path], f"lib{match['stem']}", elf.soname or name)
            found.copies.setdefault(copy.stem, []).append(copy)
        elif _DRIVER.fullmatch(name) and not _STUBS.fullmatch(dirname(path)):
            found.driver.append(tree.files[path])
    _reach(tree, env, elves, found)
    return found


def _reach(tree: ImageTree, env: dict[str, str], elves: dict[str, Elf], found: Loading) -> None:
    by_path = {copy.file.path: copy for copies in found.copies.values() for copy in copies}
    names = _names(tree, by_path)
    for folder, who in found.search:
        for name in names.get(folder, ()):
            _say(by_path[_target(tree, f"{folder}/{name}")], who)
    for path, copy in by_path.items():
        if _WHEELS.fullmatch(dirname(path)):
            _say(copy, "torch, which loads the libraries of NVIDIA's wheels")
    for who, words in (
        ("LD_PRELOAD", env.get("LD_PRELOAD", "")),
        ("/etc/ld.so.preload", tree.text("etc/ld.so.preload")),
    ):
        for word in re.split(r"[\s:]+", words):
            target = tree.resolve(word.strip("/")) if "/" in word else ""
            if target in by_path:
                _say(by_path[target], who)
    for path, who in _cached(tree):
        if path in by_path:
            _say(by_path[path], who)
    for path, elf in elves.items():
        wanted = [name for name in elf.needed if _LIBRARY.fullmatch(name)]
        for name in wanted:
            answer = _answer(tree, path, elf, name, names)
            if answer is not None:
                _say(by_path[answer[0]], f"{answer[1]} of /{path}")
    sonames = {copy.soname for copy in by_path.values() if copy.reached} | {
        name for folder, held in names.items() for name in held if by_path[_target(tree, f"{folder}/{name}")].reached
    }
    for path, elf in sorted(elves.items()):
        found.missing += [(f"/{path}", name) for name in elf.needed if _LIBRARY.fullmatch(name) and name not in sonames]


def _names(tree: ImageTree, by_path: dict[str, Copy]) -> dict[str, list[str]]:
    """Names by folder under which CUDA libraries can be found, links included."""
    names: dict[str, list[str]] = {}
    for path, file in tree.files.items():
        if file.kind in ("file", "symlink", "hardlink") and ".so" in path and _target(tree, path) in by_path:
            folder, _, name = path.rpartition("/")
            names.setdefault(folder, []).append(name)
    return names


def _target(tree: ImageTree, path: str) -> str:
    file = tree.real(path)
    return file.path if file is not None else ""


def _answer(tree: ImageTree, path: str, elf: Elf, name: str, names: dict[str, list[str]]) -> tuple[str, str] | None:
    """The copy that a library's own RPATH or RUNPATH leads to, with that word."""
    word, folders = ("RUNPATH", elf.runpath) if elf.runpath else ("RPATH", elf.rpath)
    for folder in folders:
        place = folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", f"/{dirname(path)}")
        real = tree.resolve(normpath(place).strip("/"))
        for below in (*(f"{real}/{one}" for one in _HWCAPS), real):
            if name in names.get(below, ()):
                return _target(tree, f"{below}/{name}"), word
    return None


def _say(copy: Copy, who: str) -> None:
    if who not in copy.reached:
        copy.reached.append(who)


def _search(tree: ImageTree, env: dict[str, str], cwd: str) -> Iterator[tuple[str, str]]:
    """Folders that every process searches, with who names them; each once, by its first."""
    seen: set[str] = set()
    words = re.split("[:;]", env["LD_LIBRARY_PATH"]) if env.get("LD_LIBRARY_PATH") else []
    told = [(join(cwd, folder), "LD_LIBRARY_PATH") for folder in words]
    told += list(_configured(tree, "etc/ld.so.conf", set()))
    told += [(folder, "the loader's own folders") for folder in _DEFAULT]
    for folder, who in told:
        real = tree.resolve(normpath(folder).strip("/"))
        if real not in seen:
            seen.add(real)
            yield from ((f"{real}/{one}", who) for one in _HWCAPS if tree.children(f"{real}/{one}"))
            yield real, who


def _configured(tree: ImageTree, path: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    if path in seen:
        return
    seen.add(path)
    for line in tree.text(path).splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                full = pattern.strip("/") if pattern.startswith("/") else f"{dirname(path)}/{pattern}"
                for file in sorted(one for one in tree.files if fnmatchcase(one, full)):
                    yield from _configured(tree, file, seen)
        elif words:
            for folder in re.split(r"[:,]", words[0]):
                yield folder, f"/{path}"


def _cached(tree: ImageTree) -> Iterator[tuple[str, str]]:
    """Libraries that /etc/ld.so.cache names, whatever the configuration says by now."""
    file = tree.real("etc/ld.so.cache")
    for match in re.finditer(rb"/[\w./+-]+\.so[\w.]*(?=\0)", file.text if file is not None and file.text else b""):
        target = tree.real(match[0].decode().strip("/"))
        if target is not None:
            yield target.path, "/etc/ld.so.cache"


def library_version(copy: Copy) -> str:
    """The version that a copy tells of itself: NCCL's text, or the numbers behind `.so`; empty for a bare major."""
    if copy.file.nccl:
        return copy.file.nccl
    match = _LIBRARY.fullmatch(copy.file.path.rpartition("/")[2])
    version = (match["version"] or "") if match else ""
    return version if "." in version else ""

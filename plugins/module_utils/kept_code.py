"""Runs a module out of code that is kept on the node. It travels as text (plugin_utils/kept_code), so it stands alone.

ansible sends a module with everything that it imports, some 200 KB of source in a zip, and Python compiles all of it
again for every task: most of what a task costs a node. Here the source is unpacked once into a folder that lives as
long as the node is up; Python keeps what it compiled beside it, and a task sends its arguments alone.
"""

from __future__ import annotations

import os
import sys

#: In memory, gone with the next boot, and nobody but root can write there.
FOLDER = "/run/myriad/code"
#: Its presence says that this is a running machine of systemd, and not the tree of an image that somebody builds.
BOOTED = "/run/systemd/system"
ROOT = 0
OLD_S = 24 * 3600


def main(key, module, arguments, profile, packed=None):
    """Run a module out of the kept code, or say why not: ``lacking`` (send it along), ``unsuitable`` (never here)."""
    try:
        os.getcwd()
    except OSError:
        os.chdir("/")
    # As ansible's own wrapper does: nothing of the current folder is taken for a library.
    own = os.path.dirname(os.path.realpath(sys.argv[0])) if sys.argv and sys.argv[0] not in ("", "-", "-c") else ""
    sys.path = [entry for entry in sys.path if entry not in ("", ".", own)]
    if os.geteuid() != 0 or not os.path.isdir(BOOTED):
        return say("unsuitable")
    folder = os.path.join(FOLDER, key)
    if packed is not None:
        try:
            unpack(folder, module, packed)
        except OSError:
            # No space, or something else stands there.
            return say("unsuitable")
    if not kept(folder, module):
        return say("unsuitable" if packed is not None else "lacking")
    sys.dont_write_bytecode = False
    sys.path.insert(0, folder)
    from ansible.module_utils._internal._ansiballz import _loader

    _loader.run_module(
        json_params=arguments.encode(), profile=profile, module_fqn=module, modlib_path=folder, extensions={}
    )
    return None


def say(answer):
    """The answer in the shape of a module's result."""
    print(f'{{"changed": false, "myriad_code": "{answer}"}}')


def mark(folder, module):
    """A file that is there when all code of a module is."""
    return os.path.join(folder, ".complete-" + module)


def kept(folder, module):
    """Whether the code is complete, and nobody but root can have written it."""
    try:
        info = os.lstat(folder)
    except OSError:
        return False
    return info.st_uid == ROOT and not info.st_mode & 0o022 and os.path.exists(mark(folder, module))


def unpack(folder, module, packed):
    """Lay out the code; modules of one key share what they have in common."""
    # Here, because a task that sends no code needs none of them.
    import base64
    import io
    import shutil
    import zipfile

    before = os.umask(0o022)
    try:
        os.makedirs(folder, exist_ok=True)
        for path in old(folder):
            shutil.rmtree(path, ignore_errors=True)
        with zipfile.ZipFile(io.BytesIO(base64.b64decode(packed))) as archive:
            for name in archive.namelist():
                path = os.path.join(folder, name)
                if name.endswith("/") or os.path.exists(path):
                    continue
                os.makedirs(os.path.dirname(path), exist_ok=True)
                temporary = f"{path}.{os.getpid()}.tmp"
                with open(temporary, "wb") as stream:
                    stream.write(archive.read(name))
                os.rename(temporary, path)
        with open(mark(folder, module), "wb"):
            pass
    finally:
        os.umask(before)


def old(folder):
    """Code of other versions that came a day ago or earlier: another controller's run may still use what is younger."""
    base, current = os.path.split(folder)
    others = [os.path.join(base, name) for name in os.listdir(base) if name != current]
    newest = os.lstat(folder).st_mtime
    return [path for path in others if os.lstat(path).st_mtime < newest - OLD_S]

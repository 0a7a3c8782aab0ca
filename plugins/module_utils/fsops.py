"""File operations of the node-run modules: hashes, owners and modes, landing content by rename."""

from __future__ import annotations

import glob
import grp
import hashlib
import os
import pwd
import stat

CHUNK = 1 << 20


def sha256_file(path):
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while True:
            chunk = stream.read(CHUNK)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)


def sha256_bytes(data):
    return hashlib.sha256(data).hexdigest()


def user_id(name):
    """Number of a user; None when the user does not exist (yet)."""
    if str(name).isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def group_id(name):
    if str(name).isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def user_name(number):
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def group_name(number):
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def mode_text(mode):
    return "%04o" % (int(str(mode), 8) if isinstance(mode, str) else mode)


def describe(path):
    """What stands at a path, without following a link: None or a dictionary of kind, mode, owner, group, stat."""
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind = "file"
    if stat.S_ISLNK(info.st_mode):
        kind = "link"
    elif stat.S_ISDIR(info.st_mode):
        kind = "directory"
    elif not stat.S_ISREG(info.st_mode):
        kind = "special"
    return {
        "kind": kind,
        "mode": mode_text(stat.S_IMODE(info.st_mode)),
        "owner": user_name(info.st_uid),
        "group": group_name(info.st_gid),
        "uid": info.st_uid,
        "gid": info.st_gid,
        "stat": info,
    }


def same_owner(found, owner, group):
    """Whether the owner and group that stand there are the wanted ones (names or numbers)."""
    return found["uid"] == user_id(owner) and found["gid"] == group_id(group)


def resolve_ids(owner, group):
    """Numbers for chown.

    Raises:
        LookupError: the user or group is not on this node.
    """
    uid, gid = user_id(owner), group_id(group)
    if uid is None:
        raise LookupError(f"user {owner} is not on this node; the role must install what creates it before this task")
    if gid is None:
        raise LookupError(f"group {group} is not on this node; the role must install what creates it before this task")
    return uid, gid


def clean_leftovers(path):
    """Remove temporary files that a killed run left beside a target."""
    directory, name = os.path.split(path)
    for leftover in glob.glob(os.path.join(glob.escape(directory), f".{glob.escape(name)}.myriad-*.tmp")):
        os.unlink(leftover)


def land(path, data, mode, uid, gid):
    """Put content at a path: complete with mode and owner, or not at all.

    The temporary name begins with a dot and ends with .tmp, so that no program which reads a whole drop-in
    directory takes it for a configuration file.
    """
    clean_leftovers(path)
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.myriad-{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        set_attributes(temporary, mode, uid, gid)
        os.rename(temporary, path)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise


def set_attributes(path, mode, uid, gid):
    info = os.stat(path)
    if (info.st_uid, info.st_gid) != (uid, gid):
        os.chown(path, uid, gid)
    # After chown, which clears set-user-ID bits.
    os.chmod(path, int(str(mode), 8))


def make_directory(path, mode, uid, gid):
    """Make one directory with its mode at once, whatever the umask: a killed run leaves none that nobody can enter."""
    before = os.umask(0)
    try:
        os.mkdir(path, int(str(mode), 8))
    finally:
        os.umask(before)
    set_attributes(path, mode, uid, gid)


def missing_parents(path):
    """The directories above a path that do not exist, outermost first."""
    missing = []
    directory = os.path.dirname(path)
    while directory and not os.path.isdir(directory):
        missing.append(directory)
        parent = os.path.dirname(directory)
        if parent == directory:
            break
        directory = parent
    return missing[::-1]


def decode(data):
    """Text of a file for a diff; None when it is binary or too large to show."""
    if len(data) > 200_000 or b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None

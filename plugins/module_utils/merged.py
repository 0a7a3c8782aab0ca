"""What a program makes of all files of a directory: asked before they land, compared, and blamed on one of them.

The program is asked in a mount namespace of its own, in which the directory is shown as it would be. So imports with
absolute paths are followed as they will be, messages name the real paths, and nothing on the node has changed.
"""

from __future__ import annotations

import fnmatch
import os
import shlex
import shutil
import stat
import subprocess
import tempfile

TIMEOUT_S = 60
PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
# $1 the staged directory, $2 where it is shown, the rest the command.
SHOW = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


class Refused(Exception):
    """The program does not take the files; the text is what it said."""


def words_of(command):
    """The command's words, its program with the path at which it stands; None when it is not on this node."""
    words = shlex.split(command)
    # A connection's PATH may lack the folder where the site's own programs stand.
    found = shutil.which(words[0], path=os.pathsep.join([*PROGRAM_FOLDERS, os.environ.get("PATH", "")]))
    return [found, *words[1:]] if found else None


def program_missing(command):
    """The command's program when it is not on this node, else None."""
    return None if words_of(command) else shlex.split(command)[0]


def inside(directory):
    """Regular files and links below a directory, by path; hidden ones are not read by programs that take drop-ins."""
    found = set()
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(folder, name)
            if not name.startswith(".") and stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFLNK):
                found.add(path)
    return found


class Directory:
    """A directory as it stands, with files put into it and others left out.

    Args:
        path: the directory.
        command: what reads it; its standard output is what it makes of the files.
        put: content (bytes) by path, in place of what stands there.
        left_out: paths that are to be gone.
    """

    def __init__(self, path, command, put=None, left_out=()):
        self.path = path.rstrip("/")
        self.command = command
        self.put = {name: data for name, data in (put or {}).items() if name.startswith(self.path + "/")}
        self.left_out = {name for name in left_out if name.startswith(self.path + "/")}

    def files(self):
        return sorted((inside(self.path) | set(self.put)) - self.left_out)

    def without(self, paths):
        """The same with more files left out."""
        paths = set(paths)
        put = {name: data for name, data in self.put.items() if name not in paths}
        return Directory(self.path, self.command, put, self.left_out | paths)

    def output(self):
        """What the program makes of it.

        Raises:
            Refused: it does not take it.
        """
        staged = tempfile.mkdtemp(prefix="myriad-merged-")
        made = [folder for folder in self.above() if not os.path.isdir(folder)]
        try:
            for folder in made:
                os.mkdir(folder)
            self.stage(staged)
            return self.ask(staged)
        finally:
            for folder in reversed(made):
                os.rmdir(folder)
            shutil.rmtree(staged, ignore_errors=True)

    def above(self):
        """The directory and those above it, outermost first."""
        folders = [self.path]
        while os.path.dirname(folders[0]) != "/":
            folders.insert(0, os.path.dirname(folders[0]))
        return folders

    def stage(self, staged):
        for path in inside(self.path) - self.left_out - set(self.put):
            target = os.path.join(staged, os.path.relpath(path, self.path))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.exists(path):
                shutil.copy(path, target)
        for path, data in self.put.items():
            if path in self.left_out:
                continue
            target = os.path.join(staged, os.path.relpath(path, self.path))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as stream:
                stream.write(data)

    def ask(self, staged):
        own = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        words = [
            *own,
            "sh",
            "-c",
            SHOW,
            "sh",
            staged,
            self.path,
            *(words_of(self.command) or shlex.split(self.command)),
        ]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise Refused(f"no answer within {TIMEOUT_S} s") from error
        except OSError as error:
            raise Refused(str(error)) from error
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip() or done.stdout.decode("utf-8", "replace").strip()
            raise Refused("\n".join(said.splitlines()[-10:]) or f"exit code {done.returncode} without a word")
        return done.stdout.decode("utf-8", "replace")

    def culprits(self):
        """Files of which leaving out any single one makes the program take the rest."""
        found = []
        for path in self.files():
            try:
                self.without([path]).output()
            except Refused:
                continue
            found.append(path)
        return found


def refusal(directory, refused, written=()):
    """The sentences of a refusal: what the program said, which file is at fault, what to do.

    Args:
        directory: the Directory that was asked.
        refused: the Refused it raised.
        written: paths that the asking role itself writes.
    """
    program = shlex.split(directory.command)[0]
    lines = [
        f"{program} refuses the files of {directory.path} together:",
        *("  " + line for line in str(refused).splitlines()),
    ]
    culprits = directory.culprits()
    strangers = [path for path in culprits if path not in written]
    if strangers:
        lines.append(
            "Without {} it takes the rest, so that file is at fault. This role did not write it: repair it or move it "
            "out of {}, then run again.".format(" or ".join(strangers), directory.path)
        )
    elif culprits:
        lines.append("Without {} it takes the rest, so that file is at fault.".format(" or ".join(culprits)))
    return "\n".join(lines)


def settings(text):
    """Every key of a configuration as one program prints it (TOML, one key a line), with its value as printed.

    It reads what an encoder wrote, not TOML as people write it: tables, arrays of tables, and ``key = value`` lines.
    """
    values, counts, table = {}, {}, ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[[") and line.endswith("]]"):
            name = line[2:-2]
            counts[name] = counts.get(name, -1) + 1
            table = f"{name}.{counts[name]}"
        elif line.startswith("[") and line.endswith("]") and " = " not in line:
            table = line[1:-1]
        else:
            key, separator, value = line.partition(" = ")
            if separator:
                values[f"{table}.{key}" if table else key] = value
    return values


def differences(before, after):
    """Keys whose value differs between two outputs, as (key, before, after); None where a key is not there."""
    old, new = settings(before), settings(after)
    return [(key, old.get(key), new.get(key)) for key in sorted(set(old) | set(new)) if old.get(key) != new.get(key)]


def allowed(key, patterns):
    """Whether a key matches; a pattern that begins with ! takes back what those before it allowed."""
    answer = False
    for pattern in patterns:
        plain = pattern[1:] if pattern.startswith("!") else pattern
        if fnmatch.fnmatchcase(key, plain):
            answer = not pattern.startswith("!")
    return answer


def foreign(before, after, patterns):
    """Differences in keys that the patterns do not allow."""
    return [item for item in differences(before, after) if not allowed(item[0], patterns)]


def told(item):
    """One difference in words."""
    key, before, after = item
    if before is None:
        return f"sets {key} to {after}"
    if after is None:
        return f"takes away {key}, which was {before}"
    return f"changes {key} from {before} to {after}"

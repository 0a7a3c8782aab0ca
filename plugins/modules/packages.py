#!/usr/bin/python
"""One exact-version transaction of packages, refused when it would do anything else than what was asked for."""

from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: A set of packages at exact versions, in one transaction, or packages in any version
description:
  - apt simulates the transaction first. It is refused when it would remove a package that is not listed, change a kernel package or one that somebody
    else holds, or install another version than the one given. A version that the repositories no longer have is refused with those that they have; nothing newer is installed.
  - Afterwards the installed versions are compared with the given ones, and the packages are held.
  - What an interrupted dpkg left is finished first.
  - Everything is recorded, so that M(myriad.gpu.node_state) finds a version that moved or a hold that is gone, and removes with C(state=absent) exactly
    what came with it. A package that was there before is never removed.
  - A host that has the set asks no repository.
options:
  packages:
    description: Exact version by name.
    type: dict
    default: {}
  present:
    description:
      - Packages that are installed in whatever version; the best of the repositories where one is missing. They are neither held nor taken away
        by a reset, and M(myriad.gpu.node_state) records their versions.
    type: list
    elements: str
    default: []
  absent:
    description: Packages that leave in the same transaction.
    type: list
    elements: str
    default: []
  hold:
    description: Packages that are held besides I(packages), as far as they are installed. For example the kernel.
    type: list
    elements: str
    default: []
  kernel_module:
    description:
      - A kernel module that the packages bring as source. It must be built for this kernel in this version, which modinfo proves.
        dkms builds it where the packages did not.
    type: dict
    suboptions:
      kernel:
        description: Release of the kernel. The running one when empty.
        type: str
        default: ""
      version:
        description: Version of the module.
        type: str
        required: true
  sysfs:
    description: Where sysfs is looked at, for the module that is loaded.
    type: path
    default: /sys
  procfs:
    description: Where procfs is looked at.
    type: path
    default: /proc
  foreseen:
    description:
      - What apt would do as simulated before the repository was set up (M(myriad.gpu.driver_facts)). In check mode it stands for a simulation
        that cannot be made yet.
    type: dict
    default: {}
  repository:
    description: URL of the repository that holds the packages, for messages.
    type: str
    default: ""
  keyring:
    description: The file that holds its keys, for messages.
    type: str
    default: ""
extends_documentation_fragment: [myriad.gpu.state]
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: The driver's packages
  myriad.gpu.packages:
    packages: {nvidia-kernel-dkms: 535.309.01-0+deb12u1, nvidia-smi: 535.309.01-0+deb12u1}
    hold: [linux-image-amd64]
    kernel_module: {kernel: 6.1.0-57-amd64, version: 535.309.01}

- name: What every node needs
  myriad.gpu.packages:
    present: [conntrack, socat]
"""

RETURN = r"""
transaction:
  description: What apt did or would do, with C(install), C(remove), C(upgrade).
  returned: always
  type: dict
changed_items:
  description: What was changed, as C(package nvidia-smi 535.309.01-0+deb12u1).
  returned: always
  type: list
  elements: str
module:
  description: What modinfo says about the kernel module.
  returned: when kernel_module is given
  type: dict
reboot_required:
  description: Why the host has to be rebooted; empty when it has not.
  returned: always
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils import driver_facts, packages
from ansible_collections.myriad.gpu.plugins.module_utils.record import STATE_OPTIONS, Record, RecordError, below

ARGUMENTS = dict(
    STATE_OPTIONS,
    packages={"type": "dict", "default": {}},
    present={"type": "list", "elements": "str", "default": []},
    absent={"type": "list", "elements": "str", "default": []},
    hold={"type": "list", "elements": "str", "default": []},
    kernel_module={
        "type": "dict",
        "options": {"kernel": {"type": "str", "default": ""}, "version": {"type": "str", "required": True}},
    },
    sysfs={"type": "path", "default": "/sys"},
    procfs={"type": "path", "default": "/proc"},
    foreseen={"type": "dict", "default": {}},
    repository={"type": "str", "default": ""},
    keyring={"type": "str", "default": ""},
)
EMPTY = {"install": {}, "remove": [], "upgrade": {}, "error": None}


class Transaction:
    """The work of one task on one node."""

    def __init__(self, params, check):
        self.params = params
        self.check = check
        self.wanted = {name: str(version) for name, version in params["packages"].items()}
        self.apt = packages.Apt()
        self.record = Record(below(params["root"], params["state_dir"]), params["role"], params["run_id"])
        self.done = dict(EMPTY)
        self.changed_items = []
        self.diff = []
        self.notes = []
        self.module = None
        self.reboot = []

    def result(self):
        return {
            "changed": bool(self.changed_items),
            "changed_items": self.changed_items,
            "transaction": self.done,
            "module": self.module,
            "reboot_required": self.reboot,
            "notes": self.notes,
            "diff": self.diff,
        }

    def change(self, item, before, after):
        if not self.check:
            self.record.begin_change()
        self.changed_items.append(f"{item} {after}")
        self.diff.append({"before_header": item, "after_header": item, "before": f"{before}\n", "after": f"{after}\n"})

    def run(self):
        database = self.repaired(packages.Database())
        differs = {name: v for name, v in self.wanted.items() if database.versions.get(name) != v}
        leaving = [name for name in self.params["absent"] if name in database.versions]
        if differs or leaving:
            self.transact(database, differs, leaving)
            if not self.check:
                database = packages.Database()
                self.compare(database)
        missing = [name for name in self.params["present"] if name not in database.versions]
        if missing:
            self.bring(database, missing)
            database = packages.Database()
        self.remember(database)
        self.holds(database)
        if self.wanted or self.params["kernel_module"]:
            self.kernel_module()
        if not self.check:
            self.record.save()
        return self.result()

    def repaired(self, database):
        """Finish what a killed dpkg left half done: apt refuses to work until then."""
        if not database.unfinished:
            return database
        for name, state in sorted(database.unfinished.items()):
            self.change(f"package {name}", state, "finished")
        if self.check:
            return database
        said = packages.repair()
        database = packages.Database()
        # What dpkg alone cannot finish (a package that was cut off while unpacking) the transaction installs anew.
        ours = {*self.wanted, *self.params["present"]}
        stuck = {name: state for name, state in database.unfinished.items() if name not in ours}
        if stuck:
            raise packages.PackageError(
                "dpkg was interrupted on this host and cannot finish {}:\n{}\n"
                "Repair it by hand (`dpkg --audit` lists it, `apt-get --fix-broken install` may do), then run again.".format(
                    ", ".join(f"{name} ({state})" for name, state in sorted(stuck.items())), packages.tail(said)
                )
            )
        return database

    def transact(self, database, differs, leaving):
        available = self.available(differs)
        if available is None:
            self.foretell(database, differs, leaving)
            return
        # The whole set, not only what differs: apt may not move a part that is right already.
        simulation = self.apt.simulate(self.wanted, leaving)
        if simulation["error"]:
            raise packages.PackageError(
                "apt cannot install the locked set:\n{}\nNothing was changed. The set in the lock must fit together and with "
                "what is on the host; what stands in its way is named above.".format(simulation["error"])
            )
        said = packages.unforeseen(simulation, self.wanted, leaving, database.held - self.own_holds())
        if said:
            raise packages.PackageError(
                "the transaction is refused, because it would do more than was asked for: {}. Nothing was changed. "
                "`apt-get --simulate install {}` on the host shows all of it.".format(
                    "; ".join(said), " ".join(f"{name}={version}" for name, version in sorted(self.wanted.items()))
                )
            )
        self.done = simulation
        self.tell(simulation)
        if self.check:
            return
        # Recorded before it happens: a reset after a killed run still finds what was brought.
        for name, version in simulation["install"].items():
            self.brought(name, version, locked=name in self.wanted)
        self.record.save()
        try:
            self.apt.install(self.wanted, leaving)
        except packages.PackageError as error:
            # The lists were older than the repository: ask it again, and say what it has now.
            if "404" in str(error):
                self.available(differs, fresh=True)
            raise
        packages.mark_manual([name for name in self.wanted if name in simulation["install"]])

    def bring(self, database, missing):
        """Packages in whatever version the repositories have."""
        versions = self.apt.versions(missing)
        if not all(versions.get(name) for name in missing) and not self.check:
            self.apt.fetch()
            versions = self.apt.versions(missing)
        unknown = sorted(name for name in missing if not versions.get(name))
        if unknown and self.check:
            self.notes.append("the lists on the host do not name {} yet; a run fetches them".format(", ".join(unknown)))
            for name in missing:
                self.change(f"package {name}", "not installed", "installed")
            return
        if unknown:
            raise packages.PackageError(
                "no repository of this host has {}. Nothing was installed. Correct the name, or give the host a "
                "repository that has it (`apt-cache policy {}` on the host shows those that it asks).".format(
                    ", ".join(unknown), unknown[0]
                )
            )
        # Without a version: which one is best is up to the host's own preferences (a backport is newer and not meant).
        best = dict.fromkeys(missing, "")
        simulation = self.apt.simulate(best)
        if simulation["error"]:
            raise packages.PackageError(
                "apt cannot install {}:\n{}\nNothing was changed.".format(", ".join(missing), simulation["error"])
            )
        said = packages.unforeseen(simulation, best, [], database.held)
        if said:
            raise packages.PackageError(
                "installing {} is refused, because it would do more than was asked for: {}. Nothing was changed.".format(
                    ", ".join(missing), "; ".join(said)
                )
            )
        self.tell(simulation)
        if not self.check:
            self.apt.install(best)
            packages.mark_manual(missing)

    def own_holds(self):
        return {entry["name"] for entry in self.record.entries("holds") if entry.get("ours")}

    def available(self, differs, fresh=False):
        """Whether the repositories have every version; lists are fetched when they do not say so. None: check mode cannot know."""
        versions = self.apt.versions(differs)
        lacking = {name: v for name, v in differs.items() if v not in versions.get(name, ())}
        if not lacking and not fresh:
            return True
        if self.check and self.params["foreseen"]:
            return None
        said = self.apt.fetch() if not self.check else ""
        versions = self.apt.versions(differs)
        lacking = {name: v for name, v in differs.items() if v not in versions.get(name, ())}
        if not lacking:
            return True
        trouble = (
            packages.explain_fetch(said, self.params["repository"], self.params["keyring"])
            if said and self.params["repository"]
            else None
        )
        if trouble:
            raise packages.PackageError(trouble)
        if self.check:
            self.notes.append("the lists on the host do not name the locked versions yet; a run fetches them")
            return None
        raise packages.PackageError(
            "{}. Nothing was installed: a newer version is never taken in place of the locked one. Put the locked "
            "version back into the mirror (a snapshot keeps it), or lock one that it has and run again.".format(
                "; ".join(
                    "{} {} is no longer in the repository, which has {}".format(
                        name, version, ", ".join(versions.get(name, ())) or "no version of it"
                    )
                    for name, version in sorted(lacking.items())
                )
            )
        )

    def foretell(self, database, differs, leaving):
        """Check mode before the repository is there: what was simulated aside, else the set itself."""
        foreseen = self.params["foreseen"]
        if foreseen and not foreseen.get("error"):
            self.done = {key: foreseen.get(key) or EMPTY[key] for key in EMPTY}
        else:
            self.done = {
                "install": {name: v for name, v in differs.items() if name not in database.versions},
                "upgrade": {
                    name: [database.versions[name], v] for name, v in differs.items() if name in database.versions
                },
                "remove": list(leaving),
                "error": None,
            }
        self.tell(self.done)

    def tell(self, simulation):
        for name, version in sorted(simulation["install"].items()):
            self.change(f"package {name}", "not installed", version)
        for name, (old, new) in sorted(simulation["upgrade"].items()):
            self.change(f"package {name}", old, new)
        for name in sorted(simulation["remove"]):
            self.change(f"package {name}", "installed", "removed")

    def compare(self, database):
        """The lock against what is really there now."""
        wrong = [
            "{} is {}, the lock says {}".format(name, database.versions.get(name, "not installed"), version)
            for name, version in sorted(self.wanted.items())
            if database.versions.get(name) != version
        ]
        if wrong:
            raise packages.PackageError(
                "apt ended well, but the host is not what the lock says: {}. Another program installs packages on this "
                "host (a preseed, a configuration agent, unattended upgrades): find and stop it, then run again.".format(
                    "; ".join(wrong)
                )
            )

    # --- what a reset and a comparison need ------------------------------------------------------------------------

    def brought(self, name, version, locked):
        if locked:
            self.record.put("packages", {"name": name, "version": self.wanted[name], "brought": True})
        else:
            self.record.put("brought", {"name": name, "version": version})

    def remember(self, database):
        """Everything of the set as asked for in this run, and dependencies that it brought as still in use."""
        for name, version in self.wanted.items():
            known = self.record.find("packages", name) or {}
            entry = {"name": name, "version": version}
            if known.get("brought"):
                entry["brought"] = True
            self.record.put("packages", entry)
        for kind in ("packages", "brought"):
            for entry in list(self.record.entries(kind)):
                if entry["name"] in self.wanted:
                    continue
                if entry["name"] not in database.versions and not self.check:
                    self.record.drop(kind, entry["name"])
                elif kind == "packages" and entry.get("brought"):
                    # No longer locked, still here: a reset removes it, a comparison leaves it alone.
                    self.record.drop(kind, entry["name"])
                    self.record.put("brought", {"name": entry["name"], "version": entry["version"]})
                elif kind == "brought":
                    self.record.put(kind, {key: entry[key] for key in ("name", "version")})

    def holds(self, database):
        present = set(database.versions) | (set(self.done["install"]) if self.check else set())
        names = [name for name in dict.fromkeys([*sorted(self.wanted), *self.params["hold"]]) if name in present]
        # apt lets go of a hold when it changes the package.
        moved = set(self.done["upgrade"]) | set(self.done["install"])
        todo = [name for name in names if name not in database.held]
        for name in todo:
            if name not in moved:
                self.change(f"hold of {name}", "not held", "held")
        for name in names:
            known = self.record.find("holds", name)
            self.record.put("holds", {"name": name, "ours": bool(known["ours"]) if known else name in todo})
        if self.check:
            return
        self.record.save()
        packages.hold(todo)
        # What came along stays held as long as it is there: it moves with the set.
        along = {entry["name"] for entry in self.record.entries("brought")}
        stale = []
        for entry in list(self.record.entries("holds")):
            if entry["name"] in along and entry["name"] in present:
                self.record.put("holds", {"name": entry["name"], "ours": entry["ours"]})
            elif entry["name"] not in names:
                stale.append(entry["name"])
        packages.hold(
            [n for n in stale if (self.record.find("holds", n) or {}).get("ours") and n in database.held], wanted=False
        )
        for name in stale:
            self.record.drop("holds", name)

    # --- the module ------------------------------------------------------------------------------------------------

    def kernel_module(self):
        wanted = self.params["kernel_module"]
        kernel = (wanted or {}).get("kernel") or os.uname().release
        self.module = driver_facts.modinfo(kernel)
        # The transaction itself builds it, where there is one.
        foretold = self.check and self.done["install"]
        if wanted and not foretold and not self.is_built(wanted["version"], kernel):
            self.change(
                f"kernel module nvidia for {kernel}",
                self.module["version"] if self.module else "none",
                wanted["version"],
            )
            if not self.check:
                said = driver_facts.build(wanted["version"], kernel)
                self.module = driver_facts.modinfo(kernel)
                if not self.is_built(wanted["version"], kernel):
                    raise packages.PackageError(driver_facts.not_built(wanted["version"], kernel, self.module, said))
        loaded, _license = driver_facts.loaded_module(self.params["sysfs"], self.params["procfs"])
        self.reboot = driver_facts.reboot_reasons(
            loaded, self.module["version"] if self.module else None, wanted["version"] if wanted else ""
        )

    def is_built(self, version, kernel):
        return bool(self.module) and self.module["version"] == version and self.module["vermagic"] == kernel


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    slim = {key: params[key] for key in ("packages", "present", "absent", "hold", "kernel_module")}
    if not params["role"]:
        module.fail_json(
            msg="no role is named; give the option role, or use the task in a role", invocation={"module_args": slim}
        )
    if params["root"] not in ("", "/"):
        module.fail_json(
            msg="packages are installed into the running system; for an image run the role inside of it (chroot)",
            invocation={"module_args": slim},
        )
    work = None
    try:
        work = Transaction(params, module.check_mode)
        result = work.run()
    except (packages.PackageError, RecordError) as error:
        done = work.result() if work is not None else {}
        done.pop("changed", None)
        module.fail_json(msg=str(error), exception=None, invocation={"module_args": slim}, **done)
    module.exit_json(invocation={"module_args": slim}, **result)


if __name__ == "__main__":
    main()

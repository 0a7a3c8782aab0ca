"""Hosts that are files: a whole site for ansible-playbook on one machine, without containers.

The connection plugin in `connection/` answers what a node would say (`answers`), remembers what was done to it
(`host`), and lets a host be dead. `site` writes the description, the hosts and a small bundle. What is real is all that
runs on the controller: the playbooks, the roles, their templates, the action plugins and the payloads that they build.
"""

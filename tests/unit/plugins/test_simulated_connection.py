"""The connection plugin of simulated hosts understands what the collection sends, in both of its forms."""

from __future__ import annotations

import importlib
import json

import pytest


@pytest.fixture
def simulated(collections):
    return importlib.import_module("myriad.lab.simulated.connection.simulated")


@pytest.fixture
def kept(plugin, tmp_path, monkeypatch):
    module = plugin("plugin_utils.kept_code")
    monkeypatch.setattr(module, "code_key", lambda: "key")
    return module


CALL = {
    "module_fqn": "ansible_collections.myriad.gpu.plugins.modules.files",
    "params": json.dumps({"ANSIBLE_MODULE_ARGS": {"text": 'lines\nwith "quotes", commas,\nand\n    tail=1,\n'}}),
    "profile": "legacy",
}


@pytest.mark.parametrize("packed", [None, "UEs="])
def test_what_is_sent_to_a_node_with_kept_code_is_understood(simulated, kept, packed):
    call = simulated.kept_call(kept.script(CALL, shebang="#!/usr/bin/python3", packed=packed))
    assert call == {
        "key": "key",
        "module": CALL["module_fqn"],
        "arguments": CALL["params"],
        "profile": "legacy",
        "packed": packed,
    }


@pytest.mark.parametrize("payload", [b"", b"print(1)\n", b"x\n\nmain(\n    key='k',\n)\n"])
def test_anything_else_is_not_taken_for_it(simulated, payload):
    assert simulated.kept_call(payload) is None

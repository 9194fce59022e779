"""Files that a user's file imports are sent along, and no others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scamp.user_code.own_imports import with_imported
from scamp_service.settings import ROOT
from scamp_service.study.user_code.bundling import bundle_code
from workloads.files.archive import unpack_code
from workloads.loading import load_workload

WORKLOAD = "class Mine(Workload):\n    dataset = build_model = loss = evaluate = Net\n"

Write = Callable[[dict[str, str]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def files(sources: dict[str, str]) -> Path:
        for name, source in sources.items():
            path = tmp_path / "mine" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return tmp_path / "mine"

    return files


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import layers", ["layers.py"]),
        ("import os, torch.nn as nn, layers as my", ["layers.py"]),
        ("from layers import Block, Other", ["layers.py"]),
        ("import nets.deep", ["nets/__init__.py", "nets/deep.py", "layers.py"]),
        ("from nets import deep, Net", ["nets/__init__.py", "nets/deep.py", "layers.py"]),
        ("from nets.deep import Net", ["nets/__init__.py", "nets/deep.py", "layers.py"]),
        ("from nets import *", ["nets/__init__.py"]),
        ("from .nets import Net", ["nets/__init__.py"]),
        ("from . import layers", ["layers.py"]),
        ("from plain import one", ["plain/one.py"]),
        ("def loss():\n    from layers import Block", ["layers.py"]),
        ("try:\n    import layers\nexcept ImportError:\n    layers = None", ["layers.py"]),
        ("from broken import x", ["broken.py"]),
        ("from ...layers import Block", []),
        ("import nothing, data.images, statistics", []),
        ("import layers'", []),
    ],
)
def test_what_a_file_imports_is_found(write: Write, source: str, imported: list[str]) -> None:
    folder = write(
        {
            "main": source,
            "layers": "class Block: ...",
            "nets/__init__": "from torch import nn",
            "nets/deep": "from layers import Block\nfrom . import deep",
            "plain/one": "",
            "broken": "import layers '",
            "other": "",
        }
    )
    (folder / "data").mkdir()
    assert with_imported(folder, ["main.py"]) == {"main.py", *imported}


def test_a_module_beside_the_file_comes_before_one_at_the_top(write: Write) -> None:
    folder = write({"sub/main": "import layers", "sub/layers": "from ..top import x", "layers": "", "top": ""})
    assert with_imported(folder, ["sub/main.py"]) == {"sub/main.py", "sub/layers.py", "top.py"}


def test_scamp_itself_is_no_file_of_the_user(write: Write) -> None:
    imports = ["import workloads.protocol", "from scamp_service import client", "from api.app import create_app"]
    folder = write({"main": "\n".join(imports)})
    relative = os.path.relpath(folder / "main.py", ROOT)
    assert with_imported(ROOT, [relative]) == {Path(relative).as_posix()}


def test_what_is_sent_can_be_loaded(write: Write, tmp_path: Path) -> None:
    folder = write(
        {
            "main": f"import torch\nfrom workloads.protocol import Workload\nfrom nets import Net\n{WORKLOAD}",
            "nets/__init__": "from .deep import Net",
            "nets/deep": "from sizes import WIDTH\nclass Net: ...",
            "sizes": "WIDTH = 3",
        }
    )
    code = bundle_code(folder / "study.yaml", "main.py:Mine")
    assert load_workload("main.py:Mine", unpack_code(code, tmp_path / "code")).__name__ == "Mine"

"""The front door: what it promises can be had, and nobody pays for what is not used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cutline

FACE = Path(cutline.__file__).read_text(encoding="utf-8")


def _typed_names(text: str) -> dict[str, str]:
    """name -> module, as type checkers see it: the imports under ``if TYPE_CHECKING``."""
    blocks = (node for node in ast.parse(text).body if isinstance(node, ast.If))
    imports = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
    found = {}
    for node in imports:
        for alias in node.names:
            assert alias.asname == alias.name, f"line {node.lineno}: public is only `import x as x`"
            found[alias.name] = f"cutline.{alias.name}" if node.module == "cutline" else str(node.module)
    return found


def test_the_face_is_the_table() -> None:
    assert cutline.__all__ == tuple(cutline._HOME)
    assert _typed_names(FACE) == cutline._HOME, "the table and the imports for type checkers differ"


@pytest.mark.parametrize("name", cutline.__all__)
def test_every_name_can_be_had(name: str) -> None:
    value = getattr(cutline, name)
    module = sys.modules[cutline._HOME[name]]
    assert value is module or value is getattr(module, name)
    assert value is module or name in module.__all__
    assert name in dir(cutline)


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'cutline' has no attribute 'eror'") as caught:
        _ = getattr(cutline, "eror")  # noqa: B009
    assert caught.value.name == "eror"


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import cutline", "import cutline.barrier", "import cutline.storage"])
def test_imports_stay_light(statement: str) -> None:
    assert not _loaded_by(statement) & {"ray", "grpc", "rich", "typer"}


def test_the_face_alone_loads_no_room() -> None:
    loaded = _loaded_by("import cutline")
    assert {name for name in loaded if name.startswith("cutline.")} == set()


def test_star_gives_the_face() -> None:
    code = "from cutline import *\nprint(*sorted(set(dir()) - {'__annotations__'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(cutline.__all__) <= set(done.stdout.split())

"""Damage by lot: to the bytes of a file, to what stands under its name, to which files there are."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.base import Base
from tests.fuzz.bomb import bombs

__all__ = ("BYTES", "NAMES", "damage", "files_of")

Edit = Callable[[random.Random, bytes], bytes]
_DEEP = 20_000
_HUGE = 1 << 45


def _span(lot: random.Random, content: bytes) -> tuple[int, int]:
    start = lot.randrange(len(content) + 1)
    return start, min(len(content), start + lot.choice((1, 2, 8, 32, 200, 4096)))


def _flipped(lot: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(lot.choice((1, 1, 1, 2, 5, 40)) if content else 0):
        changed[lot.randrange(len(changed))] ^= 1 << lot.randrange(8)
    return bytes(changed)


def _cut(lot: random.Random, content: bytes) -> bytes:
    return content[: lot.randrange(len(content) + 1)]


def _beheaded(lot: random.Random, content: bytes) -> bytes:
    return content[lot.randrange(len(content) + 1) :]


def _inserted(lot: random.Random, content: bytes) -> bytes:
    at = lot.randrange(len(content) + 1)
    return content[:at] + lot.randbytes(lot.choice((1, 4, 32, 512, 4096))) + content[at:]


def _removed(lot: random.Random, content: bytes) -> bytes:
    start, stop = _span(lot, content)
    return content[:start] + content[stop:]


def _repeated(lot: random.Random, content: bytes) -> bytes:
    """A block twice: behind itself, or over another place."""
    start, stop = _span(lot, content)
    block = content[start:stop]
    if lot.randrange(2):
        return content[:stop] + block + content[stop:]
    at = lot.randrange(len(content) + 1)
    return content[:at] + block + content[at + len(block) :]


def _zeroed(lot: random.Random, content: bytes) -> bytes:
    start, stop = _span(lot, content)
    return content[:start] + bytes(stop - start) + content[stop:]


def _extreme(lot: random.Random, content: bytes) -> bytes:
    """A number somewhere becomes as large as it can be, or zero."""
    width = lot.choice((1, 2, 4, 8))
    at = lot.randrange(max(1, len(content) - width))
    number = lot.choice((b"\xff", b"\0", b"\x7f")) * width
    return content[:at] + number + content[at + width :]


def _bombed(lot: random.Random, content: bytes) -> bytes:
    bomb = lot.choice(bombs())
    if lot.randrange(4) == 0:
        return bomb
    at = lot.randrange(len(content) + 1)
    return content[:at] + bomb + content[at + len(bomb) * lot.randrange(2) :]


def _nested(lot: random.Random, content: bytes) -> bytes:
    """As deep as no reader goes."""
    return lot.choice((b"[", b'{"a":', b"\x91", b"\x81\xa1a")) * _DEEP


def _emptied(lot: random.Random, content: bytes) -> bytes:
    return b""


BYTES: dict[str, Edit] = {
    "flipped": _flipped,
    "cut": _cut,
    "beheaded": _beheaded,
    "inserted": _inserted,
    "removed": _removed,
    "repeated": _repeated,
    "zeroed": _zeroed,
    "extreme": _extreme,
    "bombed": _bombed,
    "nested": _nested,
    "emptied": _emptied,
}


def _missing(lot: random.Random, path: Path, base: Base) -> str:
    _drop(path)
    return ""


def _folder_instead(lot: random.Random, path: Path, base: Base) -> str:
    _drop(path)
    path.mkdir()
    if lot.randrange(2):
        (path / "inside").write_bytes(b"x")
    return ""


def _fifo_instead(lot: random.Random, path: Path, base: Base) -> str:
    _drop(path)
    os.mkfifo(path)
    return ""


def _link_instead(lot: random.Random, path: Path, base: Base) -> str:
    """To itself, to nowhere, to the same file elsewhere, to a device that never ends."""
    kept = base.place / "nowhere"
    where = lot.choice(("itself", "nowhere", "a copy", "zero", "null"))
    if where == "a copy":
        kept = base.place / f"kept-{path.name}"
        if not path.is_dir():
            kept.write_bytes(path.read_bytes())
    _drop(path)
    targets = {"itself": path, "zero": Path("/dev/zero"), "null": Path(os.devnull)}
    path.symlink_to(targets.get(where, kept))
    return f" to {where}"


def _file_instead(lot: random.Random, path: Path, base: Base) -> str:
    _drop(path)
    path.write_bytes(lot.choice((b"", b"x", bombs()[0])))
    return ""


def _grown(lot: random.Random, path: Path, base: Base) -> str:
    """A hole at the end, seldom one larger than any memory: where it is read at all, that takes long."""
    if path.is_file() and not path.is_symlink():
        more = lot.choice((1, 70_000)) if lot.randrange(200) else _HUGE
        os.truncate(path, path.stat().st_size + more)
        return f" by {more}"
    return ""


def _swapped(lot: random.Random, path: Path, base: Base) -> str:
    others = [each for each in files_of(_top_of(path, base)) if each != path]
    if not others or path.is_dir():
        return ""
    other = lot.choice(others)
    if not (path.is_file() and other.is_file()):
        return ""
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return f" with {other.name}"


def _replaced(lot: random.Random, path: Path, base: Base) -> str:
    """By one that belongs to another store, or to an earlier time of this one."""
    source = lot.choice((base.foreign, base.earlier))
    alike = [each for each in files_of(source) if each.suffix == path.suffix] or files_of(source)
    named = [each for each in alike if each.name == path.name]
    other = lot.choice(named or alike)
    _drop(path)
    path.write_bytes(other.read_bytes())
    return f" by {other.relative_to(source.parent)}"


def _foreign_beside(lot: random.Random, path: Path, base: Base) -> str:
    name = lot.choice(
        ("x", "x.pack", "cutline.json~", "-", "a b", ".hidden", "manifest-0", "y.commit", "\u00e9")
    )
    (path.parent / name).write_bytes(lot.choice((b"", lot.randbytes(50), *bombs())))
    return f": {name!r}"


NAMES: dict[str, Callable[[random.Random, Path, Base], str]] = {
    "missing": _missing,
    "a folder instead": _folder_instead,
    "a fifo instead": _fifo_instead,
    "a link instead": _link_instead,
    "a file instead": _file_instead,
    "grown": _grown,
    "swapped": _swapped,
    "replaced": _replaced,
    "a foreign file beside": _foreign_beside,
}


def _drop(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _top_of(path: Path, base: Base) -> Path:
    """The store or export that a file belongs to."""
    return next((each for each in path.parents if each.parent == base.place / "damaged"), path)


def files_of(top: Path) -> list[Path]:
    """All files, in order; those of SQLite and the marker are as likely as the many others together."""
    found = sorted(top.rglob("*")) if top.is_dir() else [top]
    return [path for path in found if path.is_file() and not path.is_symlink()]


def damage(lot: random.Random, top: Path, base: Base) -> str:
    """Damages one thing below ``top``, which may be a file itself; says what was done."""
    files = files_of(top)
    if not files:
        return "nothing is left to be damaged"
    few = [path for path in files if path.parent == top]
    path = lot.choice(few if few and lot.randrange(3) == 0 else files)
    if lot.randrange(3):
        name = lot.choice(list(BYTES))
        path.write_bytes(BYTES[name](lot, path.read_bytes()))
        return f"{path.relative_to(base.place)} {name}"
    if path != top and lot.randrange(8) == 0:
        path = path.parent if path.parent != top else path
    name = lot.choice(list(NAMES))
    return f"{path.relative_to(base.place)}: {name}{NAMES[name](lot, path, base)}"

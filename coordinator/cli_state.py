"""What a checkpoint holds, printed: ``cutline show POINT --participant NAME`` and ``cutline manifest``.

Nothing of the user's is imported or run: classes are placeholders (`cutline.participant.placeholders`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from cutline.participant.at_rest import Absent, Message, Spawned, SuspendedCall
from cutline.participant.placeholders import Hollow, shown_message, shown_state
from cutline.participant.restore import Restored
from cutline.participant.state_tree import Bounds, tree_of
from cutline.storage import Image, Store
from cutline.storage.codec import decode
from cutline.storage.part_names import piece_of

from .cli_app import FOLDER, Folder, Name, app, console, opened, plainly
from .loading import point_in, read_cut, refuse_unknown
from .trials_report import shown_bytes

__all__ = ("manifest", "print_participant", "state_doc")


class _WithPlaceholders:
    """Reads states and messages with placeholders; keeps of the state what is to be printed of it."""

    can_save = False

    def __init__(self, cut: str, bounds: Bounds) -> None:
        self._cut = cut
        self._bounds = bounds
        self.loader = Hollow()
        self.attributes: dict[str, int] = {}
        self.arrays = 0

    def state(self, name: str, image: Image, restored: Restored | None = None) -> Any:
        for piece, content in image.pieces:
            kind, _, attribute = piece_of(piece).partition(":")
            if kind in ("attr", "slot"):
                self.attributes[attribute] = self.attributes.get(attribute, 0) + len(content)
        self.arrays = sum(memory.nbytes for memory in image.regions.values())
        live = Absent(name, self._cut).loaders()
        state, self.loader = shown_state(image.pieces, image.regions, participant=name, live=live)
        return state

    def message(self, name: str) -> Callable[[Any], Any]:
        live = Absent(name, self._cut).loaders()
        return lambda payload: shown_message(payload, live)

    def tree(self, value: Any) -> dict[str, Any]:
        return tree_of(value, self._bounds, self.loader.is_hollow)


def state_doc(
    store: Store, name: str, point: str, participant: str, bounds: Bounds, *, trust: bool
) -> dict[str, Any]:
    """A participant of a checkpoint as a JSON document (docs/reading.md).

    Raises CheckpointNotFound, UnknownParticipant, ForeignStore, Corrupt, CannotRestore.
    """
    row, manifest = point_in(store, name, point, trust=trust)
    refuse_unknown(row, [participant], list(manifest.images))
    opener = _WithPlaceholders(str(row), bounds)
    found = read_cut(store, manifest, [participant], opener)[participant]
    return {
        "system": row.system,
        "lineage": row.lineage,
        "checkpoint": row.checkpoint,
        "label": row.label,
        "participant": found.name,
        "birth": found.birth,
        "class": found.class_name,
        "class_version": found.class_version,
        "handled": found.handled,
        "attribute_bytes": opener.attributes,
        "array_bytes": opener.arrays,
        "state": opener.tree(found.instance),
        "pending": [_message_doc(each, opener) for each in found.pending],
        "suspended": [_call_doc(each, opener) for each in found.suspended],
        "questions": [
            {"number": each.number, "target": each.target, "method": each.method, "then": list(each.then)}
            for each in found.questions
        ],
        "spawns": [
            {"name": each.name, "class": each.class_name, "arguments": _arguments_doc(each, opener)}
            for each in found.spawns
        ],
        "dead_letters": found.dead_letters,
    }


def _arguments_doc(what: Message | SuspendedCall | Spawned, opener: _WithPlaceholders) -> dict[str, Any]:
    args, named = what.arguments()
    return {
        "positional": [opener.tree(each) for each in args],
        "named": {name: opener.tree(each) for name, each in named.items()},
    }


def _message_doc(message: Message, opener: _WithPlaceholders) -> dict[str, Any]:
    doc: dict[str, Any] = {"sender": message.sender, "number": message.number, "kind": message.kind}
    if message.kind in ("ask", "tell"):
        return {**doc, "method": message.method, "arguments": _arguments_doc(message, opener)}
    if message.kind in ("answer", "error"):
        doc["value"] = opener.tree(message.value())
    return {**doc, "question": message.question}


def _call_doc(call: SuspendedCall, opener: _WithPlaceholders) -> dict[str, Any]:
    return {
        "number": call.number,
        "method": call.method,
        "sender": call.sender,
        "waits_for": list(call.waits_for),
        "requests": call.requests,
        "began_at": call.began_at,
        "arguments": _arguments_doc(call, opener),
    }


# -- printing ----------------------------------------------------------------------------------------


def print_participant(doc: Mapping[str, Any]) -> None:
    """The document as a tree."""
    label = f" {doc['label']!r}" if doc["label"] else ""
    version = f" (version {doc['class_version']})" if doc["class_version"] else ""
    console.print(
        f"{doc['participant']}: {doc['class']}{version} in checkpoint {doc['checkpoint']}{label} of lineage "
        f"{doc['lineage']} ({doc['system']})",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    tree = Tree(_line("state", doc["state"]))
    _grow(tree, doc["state"], doc["attribute_bytes"])
    console.print(tree, highlight=False)
    if doc["array_bytes"]:
        console.print(f"{shown_bytes(doc['array_bytes'])} in large arrays", highlight=False)
    for title, lines in _calls(doc):
        tree = Tree(title)
        for line in lines:
            tree.add(escape(line))
        if tree.children:
            console.print(tree, highlight=False)


def _calls(doc: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The rest of a document, a title and a line for each."""
    yield (
        "not handled yet",
        [
            f"{each['kind']} {each.get('method') or 'of question ' + str(each['question'])} from "
            f"{each['sender']} #{each['number']}"
            for each in doc["pending"]
        ],
    )
    asked = {each["number"]: f"{each['target']}.{each['method']}" for each in doc["questions"]}
    yield (
        "suspended",
        [
            f"{each['method']} since {time.strftime('%F %T', time.localtime(each['began_at']))}, waits for "
            f"{', '.join(asked[number] for number in each['waits_for']) or 'a timer'}"
            for each in doc["suspended"]
        ],
    )
    yield (
        "asked, no answer yet",
        [
            f"{each['target']}.{each['method']}{', then ' + ', '.join(each['then']) if each['then'] else ''}"
            for each in doc["questions"]
        ],
    )
    yield "spawned, not up yet", [f"{each['name']}: {each['class']}" for each in doc["spawns"]]
    if doc["dead_letters"]:
        yield "dead letters", [str(doc["dead_letters"])]


def _line(name: str, node: Mapping[str, Any], size: int | None = None) -> str:
    stored = "" if size is None else f"  [dim]{shown_bytes(size)}[/]"
    return f"[bold]{escape(name)}[/]  {escape('  '.join(_words(node)))}{stored}"


def _grow(tree: Tree, node: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> None:
    """All that is below a node. `sizes`: bytes that its attributes take."""
    below = [
        *((name, child, (sizes or {}).get(name)) for name, child in node.get("attributes", {}).items()),
        *((f"argument {number}", child, None) for number, child in enumerate(node.get("arguments", ()))),
        *((f"[{number}]", child, None) for number, child in enumerate(node.get("items", ()))),
        *(("  ".join(_key_words(key)), child, None) for key, child in node.get("entries", ())),
    ]
    for name, child, size in below:
        _grow(tree.add(_line(name, child, size)), child)
    if node.get("more"):
        tree.add(f"[dim]… {node['more']:,} more[/]")


def _key_words(key: Mapping[str, Any]) -> Iterator[str]:
    """A key of a mapping; of a plain one the value alone."""
    if "value" in key and key["type"] in ("str", "int", "float", "bool", "NoneType"):
        yield repr(key["value"])
    elif key.get("items") and key["type"] == "tuple":
        yield f"({', '.join('  '.join(_key_words(each)) for each in key['items'])})"
    else:
        yield from _words(key)


def _words(node: Mapping[str, Any]) -> Iterator[str]:
    """What a line says of a node, in parts."""
    kind = node["type"]
    yield kind
    if "same_as" in node:
        yield f"= *{node['same_as']}"
        return
    if "id" in node:
        yield f"&{node['id']}"
    if "shape" in node:
        yield f"{'x'.join(map(str, node['shape'])) or 'scalar'} {node['dtype']}".strip()
    if "bytes" in node:
        yield shown_bytes(node["bytes"])
    if "length" in node:
        yield f"{node['length']:,} {dict(str='characters', bytes='bytes').get(kind, 'items')}"
    if "values" in node:
        yield node["values"]
    if "value" in node:
        more = "…" if kind in ("str", "bytes") and node.get("length", 0) > len(node["value"]) else ""
        yield f"{node['value']!r}{more}" if kind == "str" else f"{node['value']}{more}"


# -- manifest ----------------------------------------------------------------------------------------


@app.command()
@plainly
def manifest(point: str, storage: Folder = FOLDER, name: Name = "default") -> None:
    """The manifest of a checkpoint as JSON, as docs/format.md has it; bytes as hexadecimal digits."""
    with opened(storage) as store:
        row = store.catalog.find(name, point)
        found = store.read_manifest(row)
    print(json.dumps(_plain({"digest": found.id, **decode(found.to_bytes())}), indent=2, sort_keys=True))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value

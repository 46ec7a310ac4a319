"""What `cutline.start(sinks=...)` says, as the coordinator and participants are told it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from cutline.errors import CutlineError, RefusedOption
from cutline.participant.classes import Classes, name_of
from cutline.participant.effect_request import bound_to
from cutline.participant.output import CALL
from cutline.storage.blobs import check_name
from cutline.storage.sinks import FileSink, PostgresSink

__all__ = ("SinkLike", "chosen_sinks", "publish_the_rest")

SinkLike: TypeAlias = "FileSink | PostgresSink | Callable[..., Any]"


def chosen_sinks(sinks: Mapping[str, SinkLike] | None) -> dict[str, dict[str, Any]]:
    """Each sink as plain values, checked as far as that goes from here.

    Raises:
        RefusedOption: a name that cannot be used, a sink that is none, a function that cannot be named or
            does not take a value, two sinks for one file.
    """
    docs: dict[str, dict[str, Any]] = {}
    files: dict[str, str] = {}
    for name, sink in (sinks or {}).items():
        check_name(name, "sink")
        docs[name] = doc = _doc(name, sink)
        if doc["kind"] == "file":
            other = files.setdefault(os.path.realpath(doc["path"]), name)
            if other != name:
                raise RefusedOption(
                    f"sinks {other!r} and {name!r} are one file, {doc['path']}; emit to one of them"
                )
    return docs


def _doc(name: str, sink: Any) -> dict[str, Any]:
    if isinstance(sink, (FileSink, PostgresSink)):
        return sink.to_doc()
    if not callable(sink) or isinstance(sink, type):
        raise RefusedOption(
            f"sink {name!r} is a cutline.FileSink, a cutline.PostgresSink or a function, not {sink!r:.80}"
        )
    hint = (
        f"sink {name!r}: a function must be one that a module has under its own name, because participants, "
        f"which call it, find it by that. Got {sink!r:.80}"
    )
    if not hasattr(sink, "__qualname__"):
        raise RefusedOption(f"{hint}.")
    function = name_of(sink)
    try:
        found = Classes().find_named(function)
    except CutlineError as error:
        raise RefusedOption(f"{hint}: {error}") from error
    if found is not sink:
        raise RefusedOption(f"{hint}: {function} is something else.")
    try:
        bound_to(sink, [None], "")
    except TypeError as error:
        raise RefusedOption(f"sink {name!r}: {function} is called with one value: {error}") from error
    return {"kind": CALL, "function": function}


def publish_the_rest(request: Callable[..., Any], say: Callable[[str], None], patience: float) -> None:
    """Waits, at an end, until what the last checkpoint holds is published; says what is not. ``patience``:
    seconds for the reply; half of them for what can be published.
    """
    try:
        left = request("rest_output", timeout=patience, seconds=patience / 2)["left"]
    except (CutlineError, TimeoutError) as error:
        # The checkpoint is there, and what it holds is not lost.
        say(f"whether all that was emitted is published is not known ({error}); the next start goes on")
        return
    for sink, why in left.items():
        say(f"not all of {sink} is published ({why or 'not yet'}); the next start goes on with it")

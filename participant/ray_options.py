"""Ray's options, one verdict each: passed to Ray, interpreted by us, or refused with the reason.

docs/ray.md shows the same table; a test compares the two, and another one compares the names here with those
that the installed Ray knows. An option that is not listed is refused as unknown: a new Ray may have brought
one that breaks order, and passing it on unseen would be the worse mistake.

On plain processes the options that are passed to Ray are accepted and mean nothing, so that one program runs
on both. Refused ones are refused there too.
"""

from __future__ import annotations

import base64
import io
import pickle
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from cutline.errors import RefusedOption

from .allowing import check_found, check_name, is_restricted

__all__ = (
    "ACTOR_OPTIONS",
    "METHOD_OPTIONS",
    "Rule",
    "accept",
    "check_method_options",
    "decode_options",
    "encode_options",
    "passed_options",
    "refuse_marked_methods",
    "table",
)


class Rule(NamedTuple):
    """What becomes of an option.

    Attributes:
        verdict: passed, interpreted or refused.
        says: what it means here, or why it is refused.
        harmless: values of a refused option that ask for nothing, and are accepted.
    """

    verdict: str
    says: str
    harmless: tuple[Any, ...] = ()


_ORDER = "handlers of one participant run one at a time: order is what a cut is made of"
_WAYS = "messages do not travel by Ray calls"

ACTOR_OPTIONS: Mapping[str, Rule] = {
    "num_cpus": Rule("passed", "0 unless given"),
    "num_gpus": Rule("passed", ""),
    "memory": Rule("passed", "bytes"),
    "object_store_memory": Rule("passed", ""),
    "resources": Rule("passed", ""),
    "accelerator_type": Rule("passed", ""),
    "label_selector": Rule("passed", ""),
    "fallback_strategy": Rule("passed", ""),
    "scheduling_strategy": Rule("passed", "forgotten when the system is resumed on another Ray cluster"),
    "placement_group": Rule("passed", "deprecated by Ray; forgotten on another cluster"),
    "placement_group_bundle_index": Rule("passed", "deprecated by Ray; forgotten on another cluster"),
    "placement_group_capture_child_tasks": Rule("passed", "deprecated by Ray; forgotten on another cluster"),
    "runtime_env": Rule(
        "passed", "merged: PYTHONPATH begins with the program's, PYTHONHASHSEED is the system's"
    ),
    "enable_task_events": Rule("passed", ""),
    "_labels": Rule("passed", ""),
    "name": Rule("interpreted", "the participant's name in the system, its identity over restarts"),
    "namespace": Rule("interpreted", "accepted; names live in the system, which has a namespace of its own"),
    "lifetime": Rule(
        "interpreted", "accepted; a participant lives until the system stops, and comes back with it"
    ),
    "get_if_exists": Rule("interpreted", "true: a name that is taken gives its handle"),
    "max_restarts": Rule(
        "interpreted",
        "how often this participant's process may be lost before the system halts; -1 or none: as long "
        "as checkpoints commit in between. Ray's own restarts are off",
    ),
    "max_task_retries": Rule(
        "interpreted",
        "how often a message whose handling ended the process is delivered again; -1: for ever, none: "
        "4 times. All other messages are applied exactly once whatever is given",
    ),
    "max_concurrency": Rule("refused", _ORDER, (None, 1)),
    "concurrency_groups": Rule("refused", _ORDER, (None, (), [], {})),
    "allow_out_of_order_execution": Rule(
        "refused", "messages of a channel are handled in the order they were sent", (None, False)
    ),
    "max_pending_calls": Rule(
        "refused", "a sender waits for its receiver's window, it gets no error", (None, -1)
    ),
    "enable_tensor_transport": Rule("refused", _WAYS, (None, False)),
    "_actor_generator_backpressure_num_objects": Rule("refused", "an answer is one value", (None, -1)),
}

METHOD_OPTIONS: Mapping[str, Rule] = {
    "name": Rule("interpreted", "accepted; it names a task in Ray's dashboard, and no task of Ray runs"),
    "enable_task_events": Rule("interpreted", "accepted; no task of Ray runs"),
    "max_task_retries": Rule("interpreted", "accepted; messages are applied exactly once in any case"),
    "retry_exceptions": Rule(
        "refused",
        "an exception is the answer of a call that was asked; on_error is for told ones",
        (None, False),
    ),
    "num_returns": Rule(
        "refused", "an answer is one value: return a tuple; for no answer use .tell(...)", (None, 1)
    ),
    "concurrency_group": Rule("refused", _ORDER, (None, "")),
    "tensor_transport": Rule("refused", _WAYS, (None, "", "OBJECT_STORE", "object_store")),
    "_generator_backpressure_num_objects": Rule("refused", "an answer is one value", (None, -1)),
    "_num_objects_per_yield": Rule("refused", "an answer is one value", (None, 1)),
}

_NAMED_PLACES = (
    "scheduling_strategy",
    "placement_group",
    "placement_group_bundle_index",
    "placement_group_capture_child_tasks",
)
# What Ray's own values for these consist of.
_STRATEGIES = "ray.util.scheduling_strategies"
_PLACES = frozenset(
    (
        ("ray._raylet", "PlacementGroupID"),
        ("ray.util.placement_group", "PlacementGroup"),
        (_STRATEGIES, "PlacementGroupSchedulingStrategy"),
        (_STRATEGIES, "NodeAffinitySchedulingStrategy"),
        (_STRATEGIES, "NodeLabelSchedulingStrategy"),
        (_STRATEGIES, "_LabelMatchExpression"),
        (_STRATEGIES, "In"),
        (_STRATEGIES, "NotIn"),
        (_STRATEGIES, "Exists"),
        (_STRATEGIES, "DoesNotExist"),
    )
)
_COUNTS = ("max_restarts", "max_task_retries")
_MARK = "cutline.pickled"
_PLAIN = (type(None), bool, int, float, str)


def accept(name: str, value: Any) -> bool:
    """Whether `name` is an actor option of Ray's that may be given with this value; false: not one of Ray's.

    Raises:
        RefusedOption: it would break order or recovery, or its value means nothing.
    """
    rule = ACTOR_OPTIONS.get(name)
    if rule is None:
        return False
    _check(name, value, rule)
    if name in _COUNTS and value is not None and (type(value) is not int or value < -1):
        raise RefusedOption(
            f"option {name!r} is a whole number, 0 or more, or -1 for no limit; got {value!r}"
        )
    if name == "name" and value is not None and not isinstance(value, str):
        raise RefusedOption(f"option 'name' is a string; got {value!r}")
    if name == "lifetime" and value not in (None, "detached", "non_detached"):
        raise RefusedOption(f"option 'lifetime' is 'detached' or 'non_detached'; got {value!r}")
    if name in ("num_cpus", "num_gpus", "memory") and value is not None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise RefusedOption(f"option {name!r} is a number, 0 or more; got {value!r}")
    if name in ("resources", "runtime_env", "label_selector") and not isinstance(value, (dict, type(None))):
        raise RefusedOption(f"option {name!r} is a dict; got {value!r}")
    return True


def check_method_options(options: Mapping[str, Any]) -> None:
    """Looks at options of one call that are Ray's and not ours.

    Raises:
        RefusedOption: unknown, or would break order.
    """
    for name, value in options.items():
        rule = METHOD_OPTIONS.get(name)
        if rule is None:
            known = ", ".join(["key", "durable", *METHOD_OPTIONS])
            raise RefusedOption(f"method option {name!r} is not known here; options are: {known}")
        _check(name, value, rule)


def _check(name: str, value: Any, rule: Rule) -> None:
    if rule.verdict == "refused" and not any(value is one or value == one for one in rule.harmless):
        raise RefusedOption(f"option {name!r} is refused: {rule.says}. Leave it away. Got {value!r}.")


def refuse_marked_methods(kind: type) -> None:
    """Looks at what ``ray.method(...)`` has put on the methods of a class.

    Raises:
        RefusedOption: a method is marked with an option that would break order.
    """
    marks = ("num_returns", "concurrency_group", "retry_exceptions", "tensor_transport")
    for name in dir(kind):
        method = getattr(kind, name, None)
        for mark in marks:
            value = getattr(method, f"__ray_{mark}__", None)
            # The mark of a tensor transport may be an enumeration.
            value = getattr(value, "name", value)
            try:
                _check(mark, value, METHOD_OPTIONS[mark])
            except RefusedOption as refusal:
                raise RefusedOption(f"{kind.__qualname__}.{name}: {refusal}") from None


def encode_options(options: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Options as a document: what is no plain value goes as a pickle, with the cluster it belongs to."""
    encoded: dict[str, Any] = {}
    for name, value in options.items():
        if _is_plain(value) and name not in _NAMED_PLACES:
            encoded[name] = value
        elif value is not None:
            packed = base64.b64encode(pickle.dumps(value)).decode()
            encoded[name] = {_MARK: packed, "cluster": cluster}
    return encoded


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(each) for key, each in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def decode_options(options: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """The reverse of `encode_options`, on this cluster: places on another one are forgotten."""
    decoded: dict[str, Any] = {}
    for name, value in options.items():
        if type(value) is not dict or _MARK not in value:
            decoded[name] = value
        elif name not in _NAMED_PLACES or value["cluster"] == cluster:
            decoded[name] = _Opener(io.BytesIO(base64.b64decode(value[_MARK]))).load()
    return decoded


class _Opener(pickle.Unpickler):
    """Made by this system's own driver, but read from its store, which may only be trusted as far as `allow=`
    goes."""

    def find_class(self, module: str, name: str, /) -> Any:
        if not is_restricted() or (module, name) in _PLACES:
            return super().find_class(module, name)
        check_name(module, name)
        found = super().find_class(module, name)
        way = [sys.modules[module]]
        for part in name.split("."):
            way.append(getattr(way[-1], part))
        check_found(module, name, way[1:])
        return found


def passed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that Ray gets."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and name in ACTOR_OPTIONS and ACTOR_OPTIONS[name].verdict == "passed"
    }


def table(rules: Mapping[str, Rule]) -> str:
    """The rules as a Markdown table, as docs/ray.md has it."""
    lines = ["| option | verdict | meaning here, or reason |", "| --- | --- | --- |"]
    for name, rule in rules.items():
        says = rule.says
        if rule.harmless:
            shown = ", ".join(f"`{value!r}`" for value in rule.harmless)
            says += f" (accepted: {shown})"
        lines.append(f"| `{name}` | {rule.verdict} | {says} |")
    return "\n".join(lines) + "\n"

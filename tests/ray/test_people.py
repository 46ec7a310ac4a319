"""Questions to people on Ray: asked once over a lost actor and a suspension; answered while none is there."""

from __future__ import annotations

import pytest

import cutline
from tests.system.approvals import Approver, Verdict, thorough
from tests.system.living import again, comes_to, kill, until

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("local_ray"), thorough]


def actors(system: str) -> list[str]:
    """Names of the actors of a system that Ray has."""
    return [
        each["name"]
        for each in ray.util.list_named_actors(all_namespaces=True)
        if each["namespace"] == f"cutline/{system}"
    ]


def test_a_gate_on_ray(folder: str) -> None:
    with cutline.start(folder, interval=None, quiet=True) as system:
        printer = system.spawn("printer", Approver)
        writer = system.spawn("writer", Approver, printer)
        writer.publish.tell("tea")
        (question,) = until(system.pending, "the question", timeout=60)
        kill(system, "writer")
        assert system.pending() == [question]
        assert actors("default")
        suspended = system.suspend_when_waiting(120)
        assert suspended.questions == (question,)
    until(lambda: not actors("default"), "the end of all actors", timeout=60)
    cutline.answer(folder, question.id, Verdict(True, "fine"))
    with cutline.start(folder, interval=None, quiet=True) as system:
        writer = system.spawn("writer", Approver)
        wanted = [("tea, draft 1: printed", Verdict(True, "fine"))]
        comes_to(lambda: again(lambda: writer.all_got.remote().result()), wanted, "the end", timeout=60)

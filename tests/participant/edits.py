"""A graph with shared parts and circles, and small changes to it."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ("EDITS", "busy_agent")


class Busy:
    """A participant."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def busy_agent() -> Any:
    shared, inner = np.zeros(3000), [1]
    agent: Any = Busy(a=shared, v=shared[100:900], d={"x": inner}, e=inner, log=[], raw=bytearray(5000))
    agent.story = [{"n": n, "text": f"{n} said", "heard": inner} for n in range(30)]
    # Around in a circle, and back to the participant itself.
    agent.story[0]["story"], agent.story[1]["teller"] = agent.story, agent
    return agent


def write_array(agent: Any, number: int) -> None:
    agent.a[number % len(agent.a)] += 1


def write_view(agent: Any, number: int) -> None:
    agent.v[3:5] = number


def write_much(agent: Any, number: int) -> None:
    agent.a[number % 100 :] += 1


def write_raw(agent: Any, number: int) -> None:
    if agent.raw:
        agent.raw[number % len(agent.raw)] ^= 1


def resize_raw(agent: Any, number: int) -> None:
    del agent.raw[number:]
    agent.raw.extend(bytes(max(0, number - len(agent.raw))))


def grow(agent: Any, number: int) -> None:
    agent.log.append(str(number))
    agent.e.append(number)


def replace(agent: Any, number: int) -> None:
    agent.a = agent.a.copy()


def part(agent: Any, number: int) -> None:
    agent.e = list(agent.e)


def come_and_go(agent: Any, number: int) -> None:
    name = "xyz"[number % 3]
    if hasattr(agent, name):
        delattr(agent, name)
    else:
        setattr(agent, name, agent.d)


def tell_more(agent: Any, number: int) -> None:
    agent.story += [{"n": number, "text": "more", "heard": agent.e} for _ in range(number % 4)]


def tell_again(agent: Any, number: int) -> None:
    """Long stories change the size of their parts."""
    if len(agent.story) < 300:
        agent.story += [dict(entry) for entry in agent.story]


def tell_less(agent: Any, number: int) -> None:
    del agent.story[number % 20 :]


def forget_the_first(agent: Any, number: int) -> None:
    del agent.story[: number % 3]


def correct(agent: Any, number: int) -> None:
    """In place, at the same length."""
    if agent.story:
        entry = agent.story[number % len(agent.story)]
        entry["text"] = entry["text"].translate({ord("s"): "t", ord("t"): "s"})


def rephrase(agent: Any, number: int) -> None:
    if agent.story:
        agent.story[number % len(agent.story)]["text"] = "x" * (number % 50)


def nest(agent: Any, number: int) -> None:
    """One object in two attributes, and deeper and deeper."""
    if agent.story:
        entry = agent.story[number % len(agent.story)]
        agent.d[number % 5] = entry
        entry["within"] = [agent.d, number]


EDITS = (
    *(tell_more, tell_more, tell_again, tell_less, forget_the_first, correct, correct, rephrase, nest),
    *(write_array, write_array, write_view, write_much, write_raw, resize_raw),
    *(grow, replace, part, come_and_go),
)

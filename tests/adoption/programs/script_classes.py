"""Classes, an enumeration and a data class of the script itself travel as messages and live in states."""

import dataclasses
import enum

import ray

import cutline


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Draft:
    title: str
    color: Color


class Desk:
    def __init__(self, first):
        self.drafts = [first]

    def add(self, draft):
        assert isinstance(draft, Draft) and draft.color in Color
        self.drafts.append(draft)
        return draft

    def same(self):
        return [type(draft) is Draft and draft.color is Color.RED for draft in self.drafts]


ray.init(log_to_driver=False)
with cutline.start(interval=None) as system:
    desk = system.spawn("desk", Desk, Draft("one", Color.RED))
    other = system.spawn("other", Desk, Draft("two", Color.BLUE))
    back = ray.get(desk.add.remote(Draft("three", Color.RED)))
    print(type(back) is Draft, back.color is Color.RED, back)
    print(ray.get(desk.same.remote()), ray.get(other.same.remote()))

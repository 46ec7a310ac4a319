"""One application in five versions, each the one before with a refactoring that people do.

1. The first.
2. `Order` is renamed and moved to another module; `Mood` gets a member in front; `Shop` counts its version.
3. The participants' class and its methods are renamed, with calls and continuations on their way.
4. A member of the enum is renamed, the dataclass gets a field without a default, `Purchase` is split in two.
5. The method that is suspended asks for something else first, and another one is gone: nothing before fits.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ("VERSIONS", "write_versions")

VERSIONS = (1, 2, 3, 4, 5)

_FIRST = '''
import asyncio, dataclasses, enum
import cutline

class Mood(enum.Enum):
    CALM = enum.auto()
    BUSY = enum.auto()

class Order:
    def __init__(self, sku, number, customer):
        self.sku, self.number, self.customer, self.__secret = sku, number, customer, 7
    def shown(self):
        return [self.sku, self.number, self.customer, self.__secret]

@dataclasses.dataclass
class Line:
    text: str

class Gate:
    """Answers after some time, so that calls are on their way."""
    def __init__(self, seconds, woken):
        self.seconds, self.woken = seconds, woken
    async def hold(self, number):
        await asyncio.sleep(self.seconds)
        with open(self.woken, "a") as file:
            file.write(f"{number}\\n")
        return number

class Shop:
    def __init__(self, gate):
        self.gate, self.mood, self.lines, self.sum = gate, Mood.BUSY, [Line("first")], 0
        self.orders, self.planned = {"a": Order("a", 1, "ada")}, []
    def buy(self, number):
        self.gate.hold.remote(number).then(self.on_bought, Order("b", number, "bob"))
    def on_bought(self, answer, order):
        self.orders["b"] = order
        self.sum += answer
    async def plan(self, order):
        number = await self.gate.hold.remote(order.number)
        self.planned.append([number, order.sku, order.customer])
    def shown(self):
        return {
            "mood": self.mood.name, "lines": [line.text for line in self.lines], "planned": self.planned,
            "sum": self.sum, "orders": {key: order.shown() for key, order in self.orders.items()},
        }

ORDER, SHOP = Order, Shop
'''

_PROGRAM = """
import sys, time
import cutline, shop
from tests.system.living import until

def main():
    what, store, point, seconds, woken = *sys.argv[1:4], float(sys.argv[4]), sys.argv[5]
    if what == "make":
        with cutline.start(store, interval=None, quiet=True) as system:
            gate = system.spawn("gate", shop.Gate, seconds, woken)
            teller = system.spawn("shop", shop.SHOP, gate)
            names, began = shop.NAMES, time.monotonic()
            cutline.get(getattr(teller, names["buy"]).remote(2))
            getattr(teller, names["plan"]).tell(shop.ORDER("c", 3, "cyd"))
            cutline.get(teller.shown.remote())
            system.savepoint(point)
            print("HELD" if time.monotonic() - began < seconds else "LATE")
            return
    with cutline.start(store, interval=None, quiet=True, restore=point) as system:
        teller = system.spawn("shop", shop.SHOP, None)
        def shown():
            found = cutline.get(teller.shown.remote())
            return found if found["sum"] == 2 and found["planned"] else None
        print("SHOWN", until(shown, "what was on its way"))

if __name__ == "__main__":
    main()
"""


def _texts() -> dict[int, dict[str, str]]:
    first = _FIRST + 'NAMES = {"buy": "buy", "plan": "plan"}\n'
    # 2
    head, rest = first.split("class Order:")
    order, rest = rest.split("@dataclasses.dataclass", 1)
    purchase = "import cutline\n\nclass Purchase:" + order + 'cutline.renamed("shop:Order", Purchase)\n'
    second = head + "from sales import Purchase\n\n@dataclasses.dataclass" + rest.replace("Order", "Purchase")
    second = second.replace("    CALM = enum.auto()", "    SAD = enum.auto()\n    CALM = enum.auto()")
    second = second.replace(
        "class Shop:\n",
        "class Shop:\n    __cutline_version__ = 1\n"
        "    @staticmethod\n"
        "    def migrate(state, found):\n        return {**state, 'moods': [state['mood']]}\n",
    )
    # 3
    third = second
    for old, new in (
        ("Shop", "Market"),
        ("on_bought", "on_sold"),
        ("plan(", "prepare("),
        ("def buy", "def sell"),
    ):
        third = third.replace(old, new)
    third = third.replace('{"buy": "buy", "plan": "plan"}', '{"buy": "sell", "plan": "prepare"}')
    third += (
        'cutline.renamed("shop:Shop", Market)\n'
        'cutline.renamed("shop:Shop.on_bought", Market.on_sold)\n'
        'cutline.renamed("shop:Shop.plan", Market.prepare)\n'
        'cutline.renamed("shop:Shop.buy", Market.sell)\n'
    )
    # 4
    fourth = third.replace("BUSY", "ACTIVE").replace(
        "class Line:\n    text: str\n",
        "class Line:\n    __cutline_version__ = 1\n    text: str\n    size: int\n"
        "    @staticmethod\n"
        "    def migrate(state, found):\n        return {**state, 'size': len(state['text'])}\n",
    )
    fourth = fourth.replace('Line("first")', 'Line("first", 5)')
    fourth += 'cutline.renamed("shop:Mood.BUSY", Mood.ACTIVE)\n'
    split = purchase.replace(
        "class Purchase:\n",
        "class Customer:\n    def __init__(self, name): self.name = name\n\n"
        "class Purchase:\n    __cutline_version__ = 1\n"
        "    @staticmethod\n"
        "    def migrate(state, found):\n        return {**state, 'customer': Customer(state['customer'])}\n",
    )
    split = split.replace("sku, number, customer, 7", "sku, number, Customer(customer), 7")
    split = split.replace("self.customer, self.__secret]", "self.customer.name, self.__secret]")
    fourth = fourth.replace("order.customer]", "order.customer.name]")
    # 5
    fifth = fourth.replace(
        "        number = await", "        await self.gate.hold.remote(0)\n        number = await"
    )
    fifth = fifth.replace("on_sold", "on_traded").replace('"shop:Shop.on_bought"', '"shop:Shop.on_nothing"')
    return {
        1: {"shop": first},
        2: {"shop": second, "sales": purchase},
        3: {"shop": third, "sales": purchase},
        4: {"shop": fourth, "sales": split},
        5: {"shop": fifth, "sales": split},
    }


def write_versions(folder: Path) -> dict[int, Path]:
    """A folder for each version, with its modules and the program."""
    made = {}
    for version, modules in _texts().items():
        made[version] = folder / f"v{version}"
        made[version].mkdir()
        for name, text in {**modules, "program": _PROGRAM}.items():
            (made[version] / f"{name}.py").write_text(text)
    return made

"""Tensors of torch on the CPU: exact, shared as they were, and written where they changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from cutline.errors import CannotCapture  # noqa: E402
from cutline.participant.capture import Captured, Capturer  # noqa: E402
from cutline.participant.kernel_pages import PAGE  # noqa: E402
from tests.participant.images import WAYS, Images, Way, ways  # noqa: E402

# Of torch's own ways to pickle, and of what is deprecated or new in it.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

KINDS = (
    *("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "complex64"),
    *("int8", "uint8", "int16", "uint16", "int32", "int64", "bool"),
)


class Agent:
    """A participant."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def check(one: Any, other: Any) -> None:
    """The same by every bit, and in form."""
    assert type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape
    assert one.stride() == other.stride() and one.storage_offset() == other.storage_offset()
    assert one.requires_grad == other.requires_grad and (one.grad is None) == (other.grad is None)
    bits = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    assert torch.equal(*bits)


def shared(one: Any, other: Any) -> bool:
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


@ways
@pytest.mark.parametrize("kind", KINDS)
def test_every_element_type(way: Way, kind: str) -> None:
    value = (torch.arange(3000) % 100).to(getattr(torch, kind))
    check(value, way(value))


@ways
def test_every_form(way: Way) -> None:
    base = torch.arange(6000.0)
    for value in (
        *(torch.tensor(2.5), torch.empty(0, 3), base.reshape(60, 100).T, base[7:100:3]),
        *(torch.arange(6.0).expand(50, 6), torch.ones(500, requires_grad=True)),
    ):
        check(value, way(value))


@ways
def test_views_stay_views(way: Way) -> None:
    memory = np.arange(3000.0)
    lent = torch.from_numpy(memory)
    own = torch.arange(2000.0)
    value = {
        "memory": memory, "lent": lent, "part": lent[100:], "bits": lent.view(torch.int64)[7:],
        "own": own, "shown": own[10:].numpy()[::2], "matrix": own.reshape(20, 100)[1],
    }  # fmt: skip
    restored = way(value)
    restored["memory"][150] = -1.0
    assert float(restored["lent"][150]) == -1.0 == float(restored["part"][50])
    assert int(restored["bits"][143]) == int(np.array(-1.0).view(np.int64))
    restored["shown"][50] = -2.0
    assert float(restored["own"][110]) == -2.0 == float(restored["matrix"][10])
    assert memory[150] == 150 and float(own[110]) == 110


@ways
def test_storages_by_themselves(way: Way) -> None:
    value = torch.arange(2000.0)
    restored = way(
        {
            "t": value,
            "plain": value.untyped_storage(),
            "typed": value.storage(),
            "no": torch.UntypedStorage(0),
        }
    )
    assert restored["plain"].data_ptr() == restored["typed"].data_ptr() == restored["t"].data_ptr()
    assert type(restored["typed"]) is type(value.storage()) and restored["typed"].dtype == torch.float32
    assert restored["typed"][7] == 7 and restored["no"].nbytes() == 0


@ways
def test_attributes_of_a_tensor(way: Way) -> None:
    value = torch.arange(2000.0)
    value.tag = ["x"]
    weight = torch.nn.Parameter(torch.ones(40, 40))
    weight.is_shared = True
    restored = way([value, value[3:], weight, weight.detach()])
    assert restored[0].tag == ["x"] and shared(restored[0], restored[1])
    assert (
        restored[2].is_shared and type(restored[2]) is torch.nn.Parameter and shared(restored[2], restored[3])
    )


def trained() -> Any:
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4))
    net[0].again = net[2].weight
    agent = Agent(
        net=net, optimiser=torch.optim.Adam(net.parameters(), lr=0.1), chance=torch.Generator().manual_seed(7)
    )
    for _ in range(2):
        step(agent)
    return agent


def step(agent: Any) -> None:
    agent.optimiser.zero_grad()
    agent.net(torch.rand(16, 32, generator=agent.chance)).sum().backward()
    agent.optimiser.step()


@ways
def test_training_goes_on_as_it_would_have(way: Way) -> None:
    agent = trained()
    again = way(agent)
    assert again.optimiser.param_groups[0]["params"][0] is again.net[0].weight
    assert again.net[0].again is again.net[2].weight
    for each in (agent, again):
        step(each)
        step(each)
    for one, other in zip(agent.net.state_dict().values(), again.net.state_dict().values(), strict=True):
        check(one, other)
    for one, other in zip(agent.net.parameters(), again.net.parameters(), strict=True):
        check(one, other)
        check(one.grad, other.grad)


@ways
def test_those_that_pickle_themselves(way: Way) -> None:
    value = torch.arange(300).to(torch.complex64)
    for odd in (value.conj(), value.conj().imag):
        assert torch.equal(way(odd), odd)
    assert torch.equal(way(torch.eye(30).to_sparse()).to_dense(), torch.eye(30))
    assert way(torch.empty(5, device="meta")).device.type == "meta"
    nested = torch.nested.nested_tensor([torch.ones(3), torch.zeros(5)])
    assert torch.equal(way(nested).unbind()[1], torch.zeros(5))
    assert way(torch.nn.LazyLinear(5)).out_features == 5


@ways
def test_what_would_be_lost_is_refused(way: Way) -> None:
    hooked = torch.ones(3, requires_grad=True)
    hooked.register_hook(print)
    later = torch.ones(3, requires_grad=True)
    later.register_post_accumulate_grad_hook(print)
    for value, why in (
        (torch.ones(3, requires_grad=True).sum(), r"graph of a computation.*detach\(\)"),
        *((hooked, "a hook, which would be lost"), (later, "a hook, which would be lost")),
    ):
        with pytest.raises(CannotCapture, match=r"\['deep'\]\[0\]: .*" + why):
            way({"deep": [value]})


@ways
def test_a_tensor_of_a_gpu_is_refused(way: Way) -> None:
    """Where there is no GPU, one that says it is there."""

    class Elsewhere(torch.Tensor):  # type: ignore[misc]
        device = torch.device("cuda", 0)

    with pytest.raises(
        CannotCapture, match=r"\['deep'\]\[0\]: a tensor on the device cuda:0.*tensor\.cpu\(\)"
    ):
        way({"deep": [torch.ones(3).as_subclass(Elsewhere)]})


@pytest.mark.parametrize("tracking", WAYS)
def test_little_is_written_when_little_changed(tracking: str) -> None:
    net = torch.nn.Linear(1024, 1024)
    agent: Any = Agent(net=net, row=net.weight.detach()[5], shown=net.weight.detach().numpy())
    capturer, images = Capturer("p", tracking=tracking), Images()

    def take(number: int) -> Captured:
        captured = capturer.capture(agent, number=number, against=number - 1 or None)
        images.put(captured, number - 1 or None)
        capturer.committed(number)
        check(agent.net.weight, images.restore(number).net.weight)
        return captured

    assert take(1).tracked == {tracking: 4 << 20}
    with torch.no_grad():
        net.weight[7, 7] = 5
    # Pages at the edges are the neighbours' too.
    assert 0 < take(2).changed_bytes <= 4 * PAGE
    agent.row[3] = 6
    agent.shown[900, 1] = 8
    assert 0 < take(3).changed_bytes <= 5 * PAGE
    capturer = Capturer("p", tracking=tracking)
    restored = capturer.expecting()
    agent = images.restore(3, restored)
    capturer.adopt(3, agent, restored)
    assert float(agent.net.weight[5, 3]) == 6 and float(agent.row[3]) == 6
    agent.row[9] = 1
    captured = capturer.capture(agent, number=4, against=3)
    images.put(captured, 3)
    assert 0 < captured.changed_bytes <= 4 * PAGE
    assert float(images.restore(4).net.weight[5, 9]) == 1

"""Changes of containers reach the caller, and direct calls of forward run the hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workloads.parallel.containers import keep_containers


class Changing(nn.Module):
    """Changes the list and the dictionary that it is given."""

    def forward(self, x: Tensor, seen: list[Any], outputs: dict[str, Any]) -> Tensor:
        seen.append(x + 1)
        outputs["sum"], outputs["inner"][0] = x + 2, x + 3
        del outputs["old"]
        return x


def copied(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """As FSDP2's own hook does: new containers, in which each tensor is another object."""
    return torch.utils._pytree.tree_map_only(Tensor, lambda tensor: tensor.view_as(tensor), (args, kwargs))


def test_changes_of_copies_reach_the_containers_of_the_caller_and_other_values_stay_its_own() -> None:
    module = Changing()
    module.register_forward_pre_hook(copied, prepend=True, with_kwargs=True)
    x, old = torch.zeros(2), torch.ones(2)
    seen: list[Tensor] = [x]
    outputs: dict[str, Any] = {"old": old, "kept": old, "inner": [old]}
    module(x, seen, outputs=outputs)
    assert len(seen) == 1, "the copy was changed"
    keep_containers(module)
    inner = outputs["inner"]
    module(x, seen, outputs=outputs)
    assert seen[0] is x and torch.equal(seen[1], x + 1)
    assert list(outputs) == ["kept", "inner", "sum"]
    assert outputs["kept"] is old
    assert outputs["inner"] is inner
    assert torch.equal(inner[0], x + 3)


class Halving(nn.Module):
    """Calls itself with half of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return self.forward(x[: len(x) // 2]) + 1 if len(x) > 1 else x


def test_a_forward_that_is_called_directly_is_a_call_of_the_module_unless_it_calls_itself() -> None:
    module, calls = Halving(), list[int]()
    module.register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
    keep_containers(module)
    assert torch.equal(module.forward(torch.zeros(4)), torch.full((1,), 2.0))
    assert torch.equal(module(torch.zeros(2)), torch.ones(1))
    assert calls == [4, 2]

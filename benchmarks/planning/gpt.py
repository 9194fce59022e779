"""Costs of GPT models by formulas, for the benchmark of the search: every way to compute one stage on a kind of GPU.

Only matrix products, the bytes that other operations move, launches and collectives are counted. Activations are those
of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, with an attention
that keeps no scores. Rates and links are those of ``estimators.devices.catalogue``, which are assumed, not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from estimators.axes import Spread
from estimators.devices.communication import Group, collective_seconds, message_seconds
from estimators.devices.kind import DeviceKind, Links
from placement.exact.ways import Amounts, Costs, Way

STATE_BYTES = 16
"""Bytes for each parameter: 2 for itself, 2 for its gradient, 12 for its copy and moments in fp32."""
_LAUNCHES = 30  # of a block's forward pass
_NEVER = np.inf


@dataclass(frozen=True, slots=True)
class Model:
    """A GPT. ``is_half`` says whether matrix products run in half precision."""

    num_blocks: int
    width: int
    length: int = 2048
    vocabulary: int = 51_200
    is_half: bool = True

    @property
    def num_units(self) -> int:
        """Blocks and both ends."""
        return self.num_blocks + 2


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, …, up to ``most``."""
    return [2**index for index in range(most.bit_length())]


def ways_of(
    model: Model, kinds: Sequence[DeviceKind], num_devices: int, micro_batches: Sequence[int] = (1, 2, 4, 8, 16)
) -> Iterator[Way]:
    """Yield all products of pipeline, data and tensor parallelism in powers of two on up to ``num_devices``.

    Data parallel ranks are replicas or shards; tensor parallel ranks divide activations along the sequence, or not.
    """
    sizes = powers_of_two(num_devices)
    for pp, tp, dp in product(sizes, (1, 2, 4, 8), sizes):
        if pp * tp * dp <= num_devices and pp <= model.num_units:
            spreads = [Spread(tp=tp, dp_replicate=dp), Spread(tp=tp, dp_shard=dp)][: 1 if dp == 1 else 2]
            if tp > 1:
                spreads += [replace(spread, sequence_parallel=True) for spread in spreads]
            for spread, micro_batch in product(spreads, micro_batches):
                costs = tuple(costs_of(model, kind, spread, micro_batch, pp) for kind in kinds)
                yield Way(spread, micro_batch, costs, pp)


def unlike(ways: Sequence[Way], seed: int) -> list[Way]:
    """Changes the ways to those of a model whose units have between 70 and 130 % of the time and of the memory each."""
    source = np.random.default_rng(seed)
    times, sizes = source.uniform(0.7, 1.3, (2, ways[0].num_units))
    return [replace(way, costs=tuple(_scaled(costs, times, sizes) for costs in way.costs)) for way in ways]


def _scaled(costs: Costs, times: Amounts, sizes: Amounts) -> Costs:
    timed, sized = ("forward_seconds", "backward_seconds", "recompute_seconds"), ("kept_bytes", "recomputed_kept_bytes")
    changed = {name: getattr(costs, name) * times for name in timed}
    changed |= {name: np.round(getattr(costs, name) * sizes) for name in sized}
    restored_bytes = float((changed["kept_bytes"] - changed["recomputed_kept_bytes"]).max())
    return replace(costs, **changed, restored_bytes=restored_bytes)


def capacity_bytes(kind: DeviceKind) -> int:
    """Bytes of a device that tensors may use."""
    assert kind.memory is not None
    return int(kind.memory.total.value) - kind.memory.outside_bytes(8)


def costs_of(model: Model, kind: DeviceKind, spread: Spread, micro_batch: int, num_stages: int) -> Costs:
    """Costs of each unit on one rank."""
    assert kind.links is not None
    tp, dp = spread.tp, spread.dp_shard * spread.dp_replicate
    tokens, width = micro_batch * model.length, model.width
    inner = _strided(kind.links, 1)
    outer = _strided(kind.links, num_stages * tp)
    across_bytes = 2.0 * tokens * width
    kept_share = 34 / tp if spread.sequence_parallel else 10 + 24 / tp
    kept, kept_input = tokens * width * kept_share, across_bytes / (tp if spread.sequence_parallel else 1)
    flops = (24 * tokens * width**2 + 4 * micro_batch * model.length**2 * width) / tp
    params = _row(model, model.vocabulary * width, 12 * width**2, model.vocabulary * width) / tp
    product_seconds = _row(model, 0, flops, 2 * tokens * width * model.vocabulary / tp) * _per_flop(model, kind)
    moved = _row(model, 3 * across_bytes, 2 * kept, 2 * kept_input + 6 * tokens * model.vocabulary / tp)
    other_seconds = moved * kind.rates["copy"].per_byte + _LAUNCHES * kind.rates["copy"].per_op
    reduced = 2 * collective_seconds("all_reduce", across_bytes, Group(tp), inner)
    compute = product_seconds + other_seconds
    ring = np.array([collective_seconds("all_gather", 2 * num, Group(dp), outer) for num in _ends(params)])[
        _places(model)
    ]
    waits = _row(model, reduced / 2, reduced, reduced / 2)
    forward, backward, update = compute + waits, 2 * compute + waits, np.maximum(0, 2 * ring - 2 * compute)
    if spread.dp_shard > 1:  # gathers and reductions are hidden as far as there is computation
        forward, backward, update = np.maximum(compute, ring) + waits, np.maximum(2 * compute, 2 * ring) + waits, 0
    shards = spread.dp_shard
    sent = across_bytes / (tp if spread.sequence_parallel else 1)
    is_across = num_stages * tp > kind.links.domain_size.value
    sending = 2 * message_seconds(across_bytes / tp, 0, 1, outer if is_across else inner)
    logits = 6.0 * tokens * model.vocabulary / tp
    return Costs(
        forward_seconds=forward,
        backward_seconds=backward,
        state_bytes=params * STATE_BYTES / shards,
        kept_bytes=_row(model, across_bytes, kept, kept_input + logits),
        output_bytes=_row(model, sent, sent, 0),
        recompute_seconds=_row(model, _NEVER, float(forward[1]), _NEVER),
        recomputed_kept_bytes=_row(model, across_bytes, kept_input, kept_input + logits),
        message_seconds=_row(model, sending, sending, 0),
        update_seconds=update + params / shards * 2 * STATE_BYTES * kind.rates["copy"].per_byte,
        transient_bytes=4 * across_bytes + (4.0 * float(params.max()) if shards > 1 else 0.0),
        restored_bytes=kept - kept_input,
    )


def _row(model: Model, first: float, block: float, last: float) -> Amounts:
    row = np.full(model.num_units, float(block))
    row[0], row[-1] = first, last
    return row


def _ends(row: Amounts) -> list[float]:
    return [float(row[0]), float(row[1]), float(row[-1])]


def _places(model: Model) -> Amounts:
    return _row(model, 0, 1, 2).astype(int)


def _per_flop(model: Model, kind: DeviceKind) -> float:
    rate = kind.rates["matmul"]
    return rate.per_half_flop if model.is_half else rate.per_flop


def _strided(links: Links, stride: int) -> Links:
    """Links of ranks that are ``stride`` apart: fewer of a ring share a node, and rings share its network."""
    size = int(links.domain_size.value)
    sharing = min(size, stride)
    across = replace(links.across.bytes_per_second, value=links.across.bytes_per_second.value / sharing)
    return replace(
        links,
        across=replace(links.across, bytes_per_second=across),
        domain_size=replace(links.domain_size, value=max(1, size // stride)),
    )

"""Finds the fastest data parallelism over all devices of a cluster whose kinds differ, with uneven shares of the batch.

Faster devices take more samples of each micro-batch (``shares``); the ranks are replicas, or shard the model. Kinds of
recompute and numbers of micro-batches are tried in turn. Costs are those of ``pricing.unit_costs``. Shards are equally
large on all ranks, as FSDP2 divides states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf

from estimators.axes import Spread
from estimators.devices.communication import gang_time
from estimators.devices.kind import DeviceKind
from estimators.model import Plan, Prediction
from estimators.work import Collectives
from placement.exact.candidate_ways import slowest_links
from placement.exact.shares import Member, Shares, best_shares
from placement.model import Cluster
from placement.option import Evidence, NoPlan, Option
from placement.planning.question import Question, divisors
from placement.pricing.unit_costs import ModelCosts, merged_communication
from placement.refinement import Refinement, UnevenShares

MOST_ROUNDS = 4
"""Most numbers of micro-batches that are tried, the fewest first."""
_LEAST_SECONDS = 1e-15  # of a sample: a model without any work still takes turns


def best_uneven(question: Question, kinds: Mapping[str, DeviceKind]) -> Option | None:
    """The fastest plan with uneven shares of the batch on all devices.

    None if none fits, if hints allow none, or if all devices are of one kind.

    ``kinds`` are those of the cluster's devices by name, and ranks come in the order of these devices. The profile must
    have units and its plain layout.
    """
    cluster = question.cluster
    used = {device.kind: kinds[device.kind] for device in cluster.devices}
    if len(used) < 2 or not question.constraints.allow_degrees(len(cluster.devices)):
        return None
    search = _Search(question, used, {name: ModelCosts(question.profile, kind) for name, kind in used.items()})
    return min(
        search.options(), key=lambda option: (option.comparable_seconds, option.plan.num_micro_batches), default=None
    )


@dataclass(frozen=True, slots=True)
class _Search:
    question: Question
    kinds: Mapping[str, DeviceKind]
    models: Mapping[str, ModelCosts]

    @property
    def cluster(self) -> Cluster:
        return self.question.cluster

    @property
    def num_ranks(self) -> int:
        return len(self.cluster.devices)

    def options(self) -> Iterator[Option]:
        """Yield the best plan of each spread, kind of recompute and number of micro-batches, if it fits."""
        rounds = [size for size in divisors(self.question.batch) if size >= self.num_ranks][:MOST_ROUNDS]
        for spread in (Spread(dp_replicate=self.num_ranks), Spread(dp_shard=self.num_ranks)):
            recomputing = replace(spread, recompute=True)
            for way, samples in product((spread, replace(recomputing, selective=True), recomputing), rounds):
                if (option := self._option(way, samples)) is not None:
                    yield option

    def _option(self, way: Spread, samples: int) -> Option | None:
        """The option with micro-batches of ``samples`` samples over all ranks; None if it does not fit."""
        share = max(1, samples // self.num_ranks)
        sizes = [(device.kind, device.capacity_mib) for device in self.cluster.devices]
        by_size = {size: self._member(way, *size, share) for size in dict.fromkeys(sizes)}
        members = [by_size[size] for size in sizes]
        shares = best_shares(members, samples)
        if isinstance(shares, NoPlan):
            return None
        num = self.question.batch // samples
        update = max(model.update_seconds for model in self.models.values()) / way.optimizer_shards
        seconds, computing = self._seconds(way, num, num * shares.seconds + update)
        even_seconds = inf
        if shares.even_seconds < inf:
            even_seconds, _ = self._seconds(way, num, num * shares.even_seconds + update)
        prediction, offered_mib = self._prediction(members, shares)
        plan = Plan(max(shares.samples), num, shares=shares.samples, **way.values)
        uneven = UnevenShares(self._by_kind(shares), even_seconds, shares.reason)
        return Option(
            plan,
            prediction,
            offered_mib,
            Evidence.UNITS,
            seconds,
            communication_share=1 - computing / seconds if seconds else 0.0,
            bubble_share=0.0,
            refinement=Refinement(self._untrained(plan), shares=uneven),
        )

    def _member(self, way: Spread, name: str, capacity_mib: int, share: int) -> Member:
        """A rank, whose costs are those of one and of two shares, and in between on a line."""
        model, sizes = self.models[name], (share, 2 * share)
        times = [sum(unit.seconds(way, size) for unit in model.units) for size in sizes]
        held = [model.stage_bytes(way, model.counted, size, 1) for size in sizes]
        per_sample, bytes_per_sample = ((high - low) / share for low, high in (times, held))
        return Member(
            max(_LEAST_SECONDS, per_sample),
            max(0, ceil(bytes_per_sample)),
            self.question.margin.largest_peak_bytes(capacity_mib, self.num_ranks),
            max(0.0, times[0] - share * per_sample),
            max(0, ceil(held[0] - share * bytes_per_sample)),
        )

    def _seconds(self, way: Spread, num: int, computing: float) -> tuple[float, float]:
        """(seconds of a step whose slowest rank computes for so long, those of the computation)."""
        kinds = list(self.kinds.values())
        links = slowest_links(kinds)
        if links is None:
            return computing, computing
        time = gang_time(kinds[0], links, way, computing, self._collectives(way, num), num)
        return time.seconds, time.compute_seconds

    def _collectives(self, way: Spread, num: int) -> list[Collectives]:
        units = next(iter(self.models.values())).units
        unit_traffic = [unit.traffic(way, 0, int(unit is units[0])) for unit in units]  # no sizes depend on samples
        return merged_communication(
            collectives for traffic in unit_traffic for collectives in traffic.of_step(num, way.recompute)
        )

    def _untrained(self, plan: Plan) -> str:
        """Why ranks cannot train the plan; empty if they can."""
        return "trace" if any(map(self.question.profile.refusal, plan.layouts)) else ""

    def _by_kind(self, shares: Shares) -> dict[str, tuple[int, ...]]:
        samples: dict[str, tuple[int, ...]] = {}
        for device, taken in zip(self.cluster.devices, shares.samples, strict=True):
            samples[device.kind] = (*samples.get(device.kind, ()), taken)
        return samples

    def _prediction(self, members: Sequence[Member], shares: Shares) -> tuple[Prediction, int]:
        """(memory of the rank that has least left, MiB of its device)."""
        margin = self.question.margin
        predictions = []
        for device, member, taken in zip(self.cluster.devices, members, shares.samples, strict=True):
            peak_bytes = member.fixed_bytes + taken * member.bytes_per_sample
            prediction = Prediction(peak_bytes, margin_bytes=margin.bytes_for(peak_bytes, self.num_ranks))
            predictions.append((prediction, device.capacity_mib))
        return max(predictions, key=lambda pair: pair[0].reserved_mib / pair[1])

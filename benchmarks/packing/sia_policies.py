"""Policies for Sia's simulator: first come, first served, and our elastic policy.

It imports modules of Sia's checkout, so ``sia_driver`` imports it once that is on Python's path.
"""

# mypy: ignore-errors

from __future__ import annotations

from dataclasses import replace

import numpy
from sia import SiaPolicy
from sia_fix import SiaFixPolicy

from placement.model import Queued, Shape
from placement.packing.elastic import Share, redivide

RESTART_SECONDS = {"cifar10": 30, "deepspeech2": 25, "imagenet": 250, "bert": 120, "yolov3": 45}
"""Seconds that a restart takes on a real cluster: those that Sia's policy has (``get_restart_penalty``)."""
LEAST_AGE = 60.0
"""Nobody knows how long a job still takes: it counts as long as its age (Pollux's way), and at least so long."""


class Fifo(SiaFixPolicy):
    """Every job gets the GPUs that it asks for, on the first kind that has them, in the order of arrival.

    No job is preempted, and one that must wait blocks all behind it. Batches are those that users asked for.
    """

    def optimize(self, jobs, nodes, base_allocations):
        found = {name: base_allocations.get(name, (None, ())) for name in jobs}
        per_node = {kind: [one.resources["nvidia.com/gpu"] for one in some.values()] for kind, some in nodes.items()}
        left = {kind: numpy.asarray(some, dtype="uint32") for kind, some in per_node.items()}
        for kind, placed in found.values():
            for node in placed:
                left[kind][node] -= 1
        for name in sorted(jobs, key=lambda name: (jobs[name].creation_timestamp, name)):
            if found[name][1]:
                continue
            wanted = max(jobs[name].max_replicas.values())
            kind = next((kind for kind, some in left.items() if some.sum() >= wanted), None)
            if kind is None:
                break
            order = sorted(range(len(left[kind])), key=lambda node: -int(left[kind][node]))
            placed = [node for node in order for _ in range(int(left[kind][node]))][:wanted]
            for node in placed:
                left[kind][node] -= 1
            found[name] = kind, placed
        return found


class Ours(SiaPolicy):
    """Our elastic policy in the form of theirs: each kind of GPU is divided by ``redivide``.

    Jobs have a home kind; they move to a faster one whose devices are left over, if that is worth a restart.
    """

    def optimize(self, jobs, nodes, base_allocations):
        goodputs = {name: self._goodputs(job) for name, job in jobs.items()}
        now = {name: base_allocations.get(name, (None, ())) for name in jobs}
        homes = self._homes(jobs, goodputs, now)
        found = dict.fromkeys(jobs, (None, ()))
        spare = {}
        shares = {}
        for kind in self.cluster_ordering:
            names = sorted(
                (job for job in jobs if homes[job] == kind),
                key=lambda one: (now[one][0] != kind, jobs[one].creation_timestamp, one),
            )
            shares[kind] = self._divided(kind, names, jobs, goodputs, now)
            spare[kind] = self.cluster_total_gpus[kind] - sum(shares[kind].values())
        self._move(jobs, goodputs, shares, spare)
        for kind, some in shares.items():
            left = numpy.asarray([node.resources["nvidia.com/gpu"] for node in nodes[kind].values()], dtype="uint32")
            asked = {one: (-(-gpus // self.cluster_ngpus_per_node[kind]), gpus) for one, gpus in some.items()}
            same = {one: now[one] for one in some}
            for one, placed in self.alloc_to_placement(kind, asked, same, left).items():
                found[one] = (kind, placed)
        # A job on as many GPUs of a kind as before keeps its nodes: the simulator charges every other change.
        for one, (kind, placed) in found.items():
            if kind == now[one][0] and len(placed) == len(now[one][1]):
                found[one] = now[one]
        return found

    def _goodputs(self, job):
        """Kind → GPUs → goodput; what is not fitted yet is known for one GPU alone."""
        known = {}
        most = max(1, *job.max_replicas.values())
        for kind in self.cluster_ordering:
            num_nodes, num_gpus = self.configs[kind]
            able = num_gpus <= most
            if any(one is not None for one in job.speedup_fn.values()):
                values = numpy.atleast_1d(self._compute_goodputs_v2(job, kind, num_nodes[able], num_gpus[able]))
                some = {int(gpus): float(v) for gpus, v in zip(num_gpus[able], values, strict=True) if v > 1e-6}
            else:
                some = {1: float(job.cluster_throughputs[kind])}
            known[kind] = some or {1: 1e-6}
        return known

    def _homes(self, jobs, goodputs, now):
        """Jobs stay where they run. New ones go where the GPUs per job are the most, by what each gains there."""
        homes = {job: now[job][0] for job in jobs if now[job][0] is not None}
        for one in sorted(jobs, key=lambda one: (jobs[one].creation_timestamp, one)):
            if one in homes:
                continue

            def worth(kind, job=one):
                others = sum(home == kind for home in homes.values())
                room = self.cluster_total_gpus[kind] / (others + 1)
                fitting = [g for gpus, g in goodputs[job][kind].items() if gpus <= max(1, room)]
                return max(fitting) * min(1.0, room)

            homes[one] = max(self.cluster_ordering, key=worth)
        return homes

    def _divided(self, kind, names, jobs, goodputs, now):
        shares = []
        for name in names:
            sizes = sorted(goodputs[name][kind])
            held = len(now[name][1]) if now[name][0] == kind else 0
            if jobs[name].scaling_underway and held in sizes:
                sizes = [held]
            base = goodputs[name][kind].get(held) or min(goodputs[name][kind].values())
            age = max(LEAST_AGE, jobs[name].age)
            shapes = tuple(Shape(n, 1, age * base / goodputs[name][kind][n]) for n in sizes)
            shares.append(Share(Queued(name, shapes), sizes.index(held) if held in sizes else None))
        restart = sum(map(_restart_of, names)) / max(1, len(names))
        jobs = [replace(share, restart_seconds=restart) for share in shares]
        chosen = redivide(jobs, self.cluster_total_gpus[kind])
        return {
            one: share.queued.shapes[choice].num_ranks
            for one, share, choice in zip(names, shares, chosen, strict=True)
            if choice is not None
        }

    def _move(self, jobs, goodputs, shares, spare):
        """Let one job for each kind move to GPUs that are left over there."""
        for kind in self.cluster_ordering:
            best, most = None, 0.0
            for home, some in shares.items():
                for one, gpus in some.items():
                    if home == kind or jobs[one].scaling_underway:
                        continue
                    able = [(g, n) for n, g in goodputs[one][kind].items() if n <= spare[kind]]
                    goodput, wanted = max(able, default=(0.0, 0))
                    age, old = max(LEAST_AGE, jobs[one].age), goodputs[one][home].get(gpus, 0.0)
                    saved = age * (1 - old / goodput) - _restart_of(one) if goodput else 0.0
                    if saved > max(most, 0.1 * age, 3 * _restart_of(one)):
                        best, most = (home, one, wanted), saved
            waiting = [job for job in jobs if not any(job in some for some in shares.values())]
            if waiting and spare[kind] > 0:
                shares[kind][waiting[0]] = 1
                spare[kind] -= 1
            elif best is not None:
                home, one, wanted = best
                spare[home] += shares[home].pop(one)
                shares[kind][one] = wanted
                spare[kind] -= wanted


def _restart_of(name: str) -> float:
    return float(RESTART_SECONDS.get(name.split("-")[0], 30))

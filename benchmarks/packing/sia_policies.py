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
        allocations = {name: base_allocations.get(name, (None, ())) for name in jobs}
        per_node = {
            kind: [node.resources["nvidia.com/gpu"] for node in nodes_of_kind.values()]
            for kind, nodes_of_kind in nodes.items()
        }
        left = {kind: numpy.asarray(gpus, dtype="uint32") for kind, gpus in per_node.items()}
        for kind, placed in allocations.values():
            for node in placed:
                left[kind][node] -= 1
        for name in sorted(jobs, key=lambda name: (jobs[name].creation_timestamp, name)):
            if allocations[name][1]:
                continue
            num_gpus = max(jobs[name].max_replicas.values())
            kind = next((kind for kind, gpus in left.items() if gpus.sum() >= num_gpus), None)
            if kind is None:
                break
            order = sorted(range(len(left[kind])), key=lambda node: -int(left[kind][node]))
            placed = [node for node in order for _ in range(int(left[kind][node]))][:num_gpus]
            for node in placed:
                left[kind][node] -= 1
            allocations[name] = kind, placed
        return allocations


class Ours(SiaPolicy):
    """Our elastic policy in the form of theirs: each kind of GPU is divided by ``redivide``.

    Jobs have a home kind; they move to a faster one whose devices are left over, if that is worth a restart.
    """

    def optimize(self, jobs, nodes, base_allocations):
        goodputs = {name: self._goodputs(job) for name, job in jobs.items()}
        now = {name: base_allocations.get(name, (None, ())) for name in jobs}
        homes = self._homes(jobs, goodputs, now)
        allocations = dict.fromkeys(jobs, (None, ()))
        spare = {}
        shares = {}
        for kind in self.cluster_ordering:
            names = sorted(
                (job for job in jobs if homes[job] == kind),
                key=lambda name: (now[name][0] != kind, jobs[name].creation_timestamp, name),
            )
            shares[kind] = self._divided(kind, names, jobs, goodputs, now)
            spare[kind] = self.cluster_total_gpus[kind] - sum(shares[kind].values())
        self._move(jobs, goodputs, shares, spare)
        for kind, gpus_by_job in shares.items():
            left = numpy.asarray([node.resources["nvidia.com/gpu"] for node in nodes[kind].values()], dtype="uint32")
            requests = {
                name: (-(-gpus // self.cluster_ngpus_per_node[kind]), gpus) for name, gpus in gpus_by_job.items()
            }
            same = {name: now[name] for name in gpus_by_job}
            for name, placed in self.alloc_to_placement(kind, requests, same, left).items():
                allocations[name] = (kind, placed)
        # A job on as many GPUs of a kind as before keeps its nodes: the simulator charges every other change.
        for name, (kind, placed) in allocations.items():
            if kind == now[name][0] and len(placed) == len(now[name][1]):
                allocations[name] = now[name]
        return allocations

    def _goodputs(self, job):
        """Kind → GPUs → goodput; what is not fitted yet is known for one GPU alone."""
        goodputs = {}
        most = max(1, *job.max_replicas.values())
        for kind in self.cluster_ordering:
            num_nodes, num_gpus = self.configs[kind]
            able = num_gpus <= most
            if any(speedup is not None for speedup in job.speedup_fn.values()):
                values = numpy.atleast_1d(self._compute_goodputs_v2(job, kind, num_nodes[able], num_gpus[able]))
                by_gpus = {int(gpus): float(v) for gpus, v in zip(num_gpus[able], values, strict=True) if v > 1e-6}
            else:
                by_gpus = {1: float(job.cluster_throughputs[kind])}
            goodputs[kind] = by_gpus or {1: 1e-6}
        return goodputs

    def _homes(self, jobs, goodputs, now):
        """Jobs stay where they run. New ones go where the GPUs per job are the most, by what each gains there."""
        homes = {job: now[job][0] for job in jobs if now[job][0] is not None}
        for name in sorted(jobs, key=lambda name: (jobs[name].creation_timestamp, name)):
            if name in homes:
                continue

            def worth(kind, job=name):
                num_jobs = sum(home == kind for home in homes.values())
                room = self.cluster_total_gpus[kind] / (num_jobs + 1)
                fitting = [g for gpus, g in goodputs[job][kind].items() if gpus <= max(1, room)]
                return max(fitting) * min(1.0, room)

            homes[name] = max(self.cluster_ordering, key=worth)
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
            name: share.queued.shapes[choice].num_ranks
            for name, share, choice in zip(names, shares, chosen, strict=True)
            if choice is not None
        }

    def _move(self, jobs, goodputs, shares, spare):
        """Let one job for each kind move to GPUs that are left over there."""
        for kind in self.cluster_ordering:
            best, most = None, 0.0
            for home, gpus_by_job in shares.items():
                for name, gpus in gpus_by_job.items():
                    if home == kind or jobs[name].scaling_underway:
                        continue
                    able = [(g, n) for n, g in goodputs[name][kind].items() if n <= spare[kind]]
                    goodput, num_gpus = max(able, default=(0.0, 0))
                    age, old = max(LEAST_AGE, jobs[name].age), goodputs[name][home].get(gpus, 0.0)
                    saved = age * (1 - old / goodput) - _restart_of(name) if goodput else 0.0
                    if saved > max(most, 0.1 * age, 3 * _restart_of(name)):
                        best, most = (home, name, num_gpus), saved
            waiting = [job for job in jobs if not any(job in gpus_by_job for gpus_by_job in shares.values())]
            if waiting and spare[kind] > 0:
                shares[kind][waiting[0]] = 1
                spare[kind] -= 1
            elif best is not None:
                home, name, num_gpus = best
                spare[home] += shares[home].pop(name)
                shares[kind][name] = num_gpus
                spare[kind] -= num_gpus


def _restart_of(name: str) -> float:
    return float(RESTART_SECONDS.get(name.split("-")[0], 30))

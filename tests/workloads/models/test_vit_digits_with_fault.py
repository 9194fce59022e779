"""The injected fault is held for its step only."""

from __future__ import annotations

import torch

from workloads.models.vit_digits_with_fault import VitDigitsWithFault


def test_the_injected_fault_is_held_for_its_step_only_and_is_as_large_with_many_micro_batches() -> None:
    workload = VitDigitsWithFault({"spike_mib": 2, "spike_step": 1, "depth": 1, "width": 8})
    model = workload.build_model()
    optimizer = workload.optimizer(model)
    held = []
    for step in range(3):
        workload.on_step(step, 3, optimizer)
        for micro_batch in torch.arange(4).chunk(2):
            workload.loss(model, workload.train_batch(micro_batch))
        held.append(sum(spike.nbytes for spike in workload._spikes))
    assert held == [0, 2 * 2**20, 0]

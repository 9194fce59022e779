"""Which plan, on which devices, when: planner, ledger, packer. Pure: numpy and the standard library only."""

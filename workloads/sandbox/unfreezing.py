"""Finds out whether a workload's ``on_step`` may train parameters that are frozen when the model is built.

A trace runs the first steps only, so it cannot see what a later step unfreezes. The code of ``on_step`` is searched for
``requires_grad``, with the functions and methods that it names, as far as they are not torch's or Python's own. Names
are enough: that code may also freeze, or only look, costs memory that is predicted and not needed; a schedule of
learning rates costs nothing.
"""

from __future__ import annotations

from inspect import unwrap
from pathlib import Path
from types import FunctionType

from workloads.protocol import Workload
from workloads.sandbox.reached import names_in, reached, texts_in

_SWITCHES = {"requires_grad", "requires_grad_"}


def unfreezes(workload: Workload) -> str:
    """The assumption that ``on_step`` trains all that the optimizer has, with its place; empty if it unfreezes nothing.

    Frozen parameters that the optimizer does not have stay frozen, whatever ``on_step`` does.
    """
    on_step = unwrap(type(workload).on_step)
    if on_step is Workload.on_step or not isinstance(on_step, FunctionType):
        return ""
    codes = [function.__code__ for function in reached(on_step, type(workload))]
    # As an attribute, or as in setattr(parameter, "requires_grad", True).
    if not any(_SWITCHES & {*names_in(code), *texts_in(code)} for code in codes):
        return ""
    code = on_step.__code__
    place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    return f"all parameters of the optimizer train, as on_step may unfreeze them ({place})"

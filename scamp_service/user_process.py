"""Starts a process that runs users' code: with an environment without secrets, as the user that is set for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from scamp_service.settings import ROOT
from scamp_service.user_account import USER, Lent, account_of, started_as
from scamp_service.user_environment import hide_environment, user_environment


def start_for_user(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Lent | None]:
    """The process, with pipes for its input and output, and the folder that its account shares with us, if it has one.

    It belongs to a session of its own, so that Ctrl-C in a terminal is for the service, which then ends its children.
    Raises ``Refused`` when it cannot run as the user that is set.
    """
    hide_environment()  # the child can read what this process was started with
    account = account_of(os.environ.get(USER, ""))
    lent = None if account is None else Lent.to(account)
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=(user_environment(os.environ) if account is None else account.environment())
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,
        **started_as(account),
    )
    return child, lent

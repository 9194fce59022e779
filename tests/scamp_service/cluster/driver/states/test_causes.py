"""Words for the ends of ranks."""

from __future__ import annotations

from scamp_service.cluster.driver.states.causes import cause_in, cause_of_death

FULL_DISK = """The actor died because of an error raised in its creation task, \x1b[36mray::Rank.__init__()\x1b[39m
  File "rank.py", line 7, in __init__
    self.folder.mkdir()
OSError: [Errno 28] No space left on device: '/data'
"""
"""As Ray words an exception in the constructor of an actor."""


def test_the_cause_of_an_exception_is_the_last_line_of_its_traceback_without_colours() -> None:
    assert cause_in(FULL_DISK) == "OSError: [Errno 28] No space left on device: '/data'"
    assert cause_of_death(FULL_DISK, 17) == cause_in(FULL_DISK)


def test_the_cause_of_other_errors_of_ray_is_their_first_line() -> None:
    assert cause_in("\x1b[31mThe actor is dead\x1b[0m because its node has died.\n\tactor_id: 5\n") == (
        "The actor is dead because its node has died."
    )
    assert cause_in("") == ""

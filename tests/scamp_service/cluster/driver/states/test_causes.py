"""Words for the ends of ranks."""

from __future__ import annotations

from scamp_service.cluster.driver.states.causes import cause_in, cause_of_death

LOST = "The actor exits with a connection error"
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


def test_a_crash_is_quoted_from_its_beginning_without_lines_of_ray() -> None:
    stack = [f'  File "train.py", line {number} in step' for number in range(30)]
    stderr = "\n".join([":actor_name:rank", "a warning", "Fatal Python error: Aborted", "", *stack])
    quoted = cause_of_death(LOST, 7, stderr).split("worker-*-7.err ends with: ")[1]
    assert quoted.startswith('Fatal Python error: Aborted | File "train.py", line 0 in step | ')
    assert "line 20" not in quoted


def test_without_a_crash_the_last_lines_are_quoted() -> None:
    stderr = "\n".join([":job_id:1", *(f"line {number}" for number in range(100))])
    assert cause_of_death(LOST, 7, stderr).endswith("line 98 | line 99")


def test_where_nothing_was_read_the_reason_says_where_to_look() -> None:
    assert cause_of_death(LOST, 7).endswith("its last words may be in Ray's log worker-*-7.err on its host")

"""There are many kinds of mistakes, and each answer is judged for clarity with a reason."""

from __future__ import annotations

import pytest

from benchmarks.covering.mistakes import MISTAKES, MOST_LINES, Answer, Mistake, function

MISTAKE = Mistake("x", {"nets.py": "a\nb  # here"}, ("do this",))


def test_there_are_many_kinds_of_mistakes_each_with_its_own_name() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 30
    assert all(mistake.words for mistake in MISTAKES)


@pytest.mark.parametrize(
    ("answer", "faults"),
    [
        (Answer(2, "scamp: nets.py, line 2: do this", 1.0), []),
        (Answer(1, "scamp: nets.py, line 2: do this", 1.0), ["exit code 1 instead of 2"]),
        (Answer(2, "scamp: do this", 1.0), ["does not say 'nets.py, line 2'"]),
        (Answer(2, "nets.py, line 2\ndo this\nTraceback", 1.0), ["shows 'Traceback'"]),
        (Answer(2, "nets.py, line 2\ndo this\ntorch/nn/modules/module.py", 1.0), ["shows 'torch/n'"]),
        (Answer(2, "nets.py, line 2\ndo this" + MOST_LINES * "\n.", 1.0), ["6 lines"]),
        (Answer(2, "nets.py, line 2 do this", 99.0), ["took 99 s"]),
    ],
)
def test_an_answer_is_clear_or_it_is_said_why_not(answer: Answer, faults: list[str]) -> None:
    assert answer.faults(MISTAKE) == faults


def test_the_mark_of_a_function_is_at_its_definition() -> None:
    required_words = function("x", "words", loss="return 3  # whole").required_words
    assert required_words[0].startswith("nets.py, line ") and required_words[1:] == ["words"]

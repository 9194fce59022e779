"""Turns the argument of an estimate into candidates: a study's, or those of a built-in workload or a user's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scamp_service.errors import InvalidInput
from scamp_service.model import Json
from scamp_service.study.parse import read_study
from scamp_service.study.sampler_options import RandomOptions
from scamp_service.study.spec import StudySpec
from scamp_service.study.user_code.bundling import bundle_code

STUDY_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Candidates:
    """A workload, the zip of its files (None for a built-in one), and the parameters of each candidate."""

    workload: str
    code: bytes | None
    candidates: Sequence[Mapping[str, Any]]


def is_study(source: str) -> bool:
    """Whether the argument of an estimate names a study's file."""
    return Path(source).suffix in STUDY_SUFFIXES


def candidates_of(
    source: str,
    params: Mapping[str, Any],
    num_candidates: int = 1,
    working_dir: Path | None = None,
    *,
    at_random: bool = False,
) -> Candidates:
    """Candidates of ``source``: STUDY.yaml, a built-in workload's name, FILE.py:Class, FILE.py:function or MODULE:FUNC.

    ``params`` override those of a study. A study's candidates are the first ones that it would try, or random ones if
    ``at_random`` or if its sampler needs a process of its own. Raises ``InvalidInput``.
    """
    if not is_study(source):
        if ":" not in source:
            return Candidates(source, None, [params])
        module, _, name = source.rpartition(":")
        file = Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")
        folder = Path.cwd()
        if working_dir is None and (file.is_absolute() or ".." in file.parts):
            folder, file = file.parent, Path(file.name)
        workload = f"{file}:{name}"
        return Candidates(workload, bundle_code(folder / "study", workload, working_dir), [params])
    from scamp_service.sizing.user_workload import with_space

    study = Path(source)
    spec = read_study(study)
    code = code_of(study, spec, working_dir)
    spec = with_space(spec, code)
    if unknown := sorted(params.keys() - spec.space.keys() - spec.fixed.keys()):
        raise InvalidInput(f"{source} has no parameter {unknown[0]!r}: {', '.join([*spec.space, *spec.fixed])}")
    proposed = proposed_candidates(spec, num_candidates, at_random=at_random)
    return Candidates(spec.workload, code, [{**proposal, **params} for proposal in proposed])


def proposed_candidates(spec: StudySpec, num_candidates: int, *, at_random: bool = False) -> Sequence[Json]:
    """The first candidates that a study would try, or random ones, as in ``candidates_of``."""
    from scamp_service.search.proposals import Search, needs_own_process

    if at_random or needs_own_process(spec):
        at_random_too = spec.search.model_copy(update={"sampler": RandomOptions(name="random")})
        spec = spec.model_copy(update={"search": at_random_too})
    return Search(spec).propose([], 0, num_candidates)


def code_of(study: Path, spec: StudySpec, working_dir: Path | None) -> bytes | None:
    """The zip of the files that a study's workload needs; None for a built-in one."""
    return bundle_code(study, spec.files[0], working_dir, spec.files[1:]) if spec.files else None

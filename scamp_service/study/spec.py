"""The study as a user writes it. Pydantic lives here, at the edge; errors say which field, and what is allowed.

``parse_study`` reads YAML, JSON or a mapping and raises one ``InvalidInput`` for all that is wrong. Nothing here loads
user files, asks the database or knows which workloads exist.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from scamp_service.errors import InvalidInput

MAX_TEXT_BYTES = 2**20
MAX_TRIALS = 100_000
MAX_REPORTS = 100_000  # evaluations of one trial: each is a row
_LARGEST_INT = 2**53  # integers beyond it are not exact as a float, which samplers and JSON readers use
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def parse_study(source: str | bytes | Mapping[str, Any]) -> StudySpec:
    """A validated study from YAML (or JSON) text, or from its parsed form. Raises ``InvalidInput``."""
    data = source if isinstance(source, Mapping) else _load_yaml(source)
    if not isinstance(data, Mapping):
        raise InvalidInput(f"a study is a mapping of {', '.join(StudySpec.model_fields)}; this is {_shown(data)}")
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        raise InvalidInput(f"the study is not valid: {_words(error)}") from None


# --- values ----------------------------------------------------------------------------------------------------------
def _number(value: Any) -> Any:
    """PyYAML follows YAML 1.1, where ``1e-4`` is text for want of a dot: nobody means that."""
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be finite")
    if isinstance(value, int) and abs(value) > _LARGEST_INT:
        raise ValueError("must lie within ±2^53")
    return value


def _integer(value: Any) -> Any:
    try:
        number = _number(value)
    except ValueError:
        raise ValueError("must be an integer") from None
    if number is not value and float(number).is_integer():  # written as 1e3
        return int(number)
    if not isinstance(number, int):
        raise ValueError("must be an integer")
    return number


def _scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and not _EXPONENT.fullmatch(value):
        if len(value) > 1000:
            raise ValueError("must not be longer than 1000 characters")
        if "\0" in value or not _encodable(value):  # no database stores these
            raise ValueError("must be text without NUL and lone surrogates")
        return value
    if not isinstance(value, int | float | str):
        raise ValueError("must be true, false, a number or a text")
    return _number(value)


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _name(value: str) -> str:
    if not value.isidentifier() or len(value) > 100:
        raise ValueError("parameter names are identifiers of at most 100 characters: letters, digits and _")
    return value


def _printable(value: str) -> str:
    if not value.isprintable() or not value.strip():
        raise ValueError("must be printable text on one line")
    return value


Scalar = Annotated[bool | int | float | str, BeforeValidator(_scalar)]
Number = Annotated[int | float, BeforeValidator(_number)]
Integer = Annotated[int, BeforeValidator(_integer)]
Name = Annotated[str, AfterValidator(_name)]
Title = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


# --- the search space ------------------------------------------------------------------------------------------------
class Choice(_Strict):
    """One of a list of values."""

    choice: Annotated[list[Scalar], Field(min_length=1, max_length=1000)]

    @field_validator("choice")
    @classmethod
    def _different(cls, values: list[Scalar]) -> list[Scalar]:
        seen: dict[Scalar, Scalar] = {}
        for value in values:
            if value in seen:  # 1 == 1.0 == True: no sampler can tell them apart
                raise ValueError(f"lists {seen[value]!r} and {value!r}, which are equal; keep one")
            seen[value] = value
        return values

    @property
    def num_values(self) -> int:
        return len(self.choice)

    def why_not(self, value: Scalar) -> str:
        """What is wrong with ``value`` as one of these; empty when nothing is."""
        same = any(value == option and isinstance(value, bool) == isinstance(option, bool) for option in self.choice)
        return "" if same else f"{value!r} is not one of {_listed(self.choice)}"


class Range(_Strict):
    """A number between ``low`` and ``high`` (both included); ``int`` when both are written as integers.

    With ``step`` the values are low, low + step, …, as far as they do not exceed ``high``.
    """

    low: Number
    high: Number
    log: bool = False
    step: Number | None = None

    @property
    def integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def num_values(self) -> int | None:
        """How many values it has; None when it is continuous."""
        if self.low == self.high:
            return 1
        if not self.integer and self.step is None:
            return None
        # In decimals, as written: 0.3 / 0.1 is 2.99… in floats.
        return int((Decimal(str(self.high)) - Decimal(str(self.low))) // Decimal(str(self.step or 1))) + 1

    def value(self, index: int) -> int | float:
        """The ``index``-th value of a countable range."""
        exact = Decimal(str(self.low)) + index * Decimal(str(self.step or 1))
        return int(exact) if self.integer else float(exact)

    def why_not(self, value: Scalar) -> str:
        """What is wrong with ``value`` as one of these; empty when nothing is."""
        if isinstance(value, bool | str) or (self.integer and not isinstance(value, int)):
            return f"{value!r} is not {'an integer' if self.integer else 'a number'}"
        if not self.low <= value <= self.high:
            return f"{value} is not between {self.low} and {self.high}"
        if self.step is not None and (Decimal(str(value)) - Decimal(str(self.low))) % Decimal(str(self.step)):
            return f"{value} is not {self.low} plus a multiple of {self.step}"
        return ""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        if not math.isfinite(float(self.high) - float(self.low)):
            raise ValueError("the range is too wide: high - low is not finite")
        if self.log and self.low <= 0:
            raise ValueError(f"a log range needs low > 0, got {self.low}")
        if self.log and self.step is not None:
            raise ValueError("a log range cannot have a step")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step must be positive, got {self.step}")
        if self.integer and self.step is not None and not isinstance(self.step, int):
            raise ValueError(f"the step of an integer range must be an integer, got {self.step}")
        if self.num_values is not None and self.num_values > _LARGEST_INT:
            raise ValueError(f"has {self.num_values} values; take a larger step")
        return self


def _kind(value: Any) -> str | None:
    if isinstance(value, Choice) or (isinstance(value, Mapping) and "choice" in value):
        return "choice"
    return "range" if isinstance(value, Range | Mapping) else None


Dimension = Annotated[
    Annotated[Choice, Tag("choice")] | Annotated[Range, Tag("range")],
    Discriminator(
        _kind,
        custom_error_type="dimension",
        custom_error_message="must be {choice: [value, …]} or {low: number, high: number}",
    ),
]


# --- the study -------------------------------------------------------------------------------------------------------
class Objective(_Strict):
    metric: Title
    direction: Literal["maximize", "minimize"] = "maximize"


class Search(_Strict):
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    seed: Annotated[Integer, Field(ge=0, le=2**31)] = 0


class Stopping(_Strict):
    """Asynchronous successive halving: at rungs ``min_steps × reduction_factor^k`` keep the best 1/reduction_factor.

    ``min_steps`` defaults to the first report.
    """

    rule: Literal["asha", "none"] = "asha"
    min_steps: Annotated[Integer, Field(ge=1)] | None = None
    reduction_factor: Annotated[Integer, Field(ge=2, le=1000)] = 3


class Budget(_Strict):
    """``steps`` are optimizer steps of one trial; an evaluation is reported every ``report_every`` of them."""

    trials: Annotated[Integer, Field(ge=1, le=MAX_TRIALS)] = 20
    steps: Annotated[Integer, Field(ge=1, le=10**9)] = 100
    report_every: Annotated[Integer, Field(ge=1)] | None = None
    max_concurrent: Annotated[Integer, Field(ge=1)] | None = None
    max_lost: Annotated[Integer, Field(ge=0)] = 5
    max_oom: Annotated[Integer, Field(ge=0)] = 5

    @model_validator(mode="after")
    def _reported(self) -> Self:
        every = self.report_every
        if every is not None and every > self.steps:
            raise ValueError(f"report_every ({every}) must not exceed steps ({self.steps}): nothing would be reported")
        if every is not None and self.steps // every > MAX_REPORTS:
            raise ValueError(
                f"{self.steps} steps reported every {every} are more than {MAX_REPORTS} reports a trial; "
                f"set report_every to {math.ceil(self.steps / MAX_REPORTS)} or more"
            )
        return self


class StudySpec(_Strict):
    """What the user asks for. ``start_with`` are candidates to try first; ``fixed`` holds for all candidates.

    A candidate of ``start_with`` may leave parameters to the sampler, and overrides ``fixed``.
    """

    name: Title
    workload: Annotated[str, Field(min_length=1, max_length=300)]
    objective: Objective
    space: Annotated[dict[Name, Dimension], Field(max_length=100)]
    fixed: Annotated[dict[Name, Scalar], Field(max_length=100)] = {}
    start_with: Annotated[list[dict[str, Scalar]], Field(max_length=1000)] = []
    search: Search = Search()
    stopping: Stopping = Stopping()
    budget: Budget = Budget()

    @field_validator("space")
    @classmethod
    def _not_empty(cls, space: dict[str, Choice | Range]) -> dict[str, Choice | Range]:
        if not space:
            raise ValueError("the search space is empty: name at least one parameter with choice, or low and high")
        return space

    @field_validator("workload")
    @classmethod
    def _well_formed(cls, workload: str) -> str:
        if not re.fullmatch(r"[a-z_][a-z0-9_]*|(?!/)(?!.*\.\.)[\w./-]+\.py:[A-Za-z_]\w*", workload):
            raise ValueError(
                f"{workload!r} is neither a built-in workload nor FILE.py:Class with a path relative to the study"
            )
        return workload

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        complaint = next(self._complaints(), None)
        if complaint is not None:
            raise ValueError(complaint)
        return self

    def _complaints(self) -> Iterator[str]:
        """What is wrong between fields, the first worth saying."""
        both = sorted(set(self.space) & set(self.fixed))
        if both:
            yield f"{', '.join(both)}: both in space and in fixed; keep one"
        if self.search.sampler == "grid":
            yield from self._grid_complaints()
        for position, start in enumerate(self.start_with):
            yield from self._start_complaints(f"start_with[{position}]", start)
        if len(self.start_with) > self.budget.trials:
            yield f"start_with has {len(self.start_with)} candidates, the budget {self.budget.trials} trials"
        min_steps = self.stopping.min_steps
        if self.stopping.rule == "asha" and min_steps is not None and min_steps >= self.budget.steps > 1:
            yield f"stopping.min_steps ({min_steps}) must be less than budget.steps ({self.budget.steps})"
        yield from self._batch_complaints()

    def _grid_complaints(self) -> Iterator[str]:
        counts = {name: None if _is_log(d) else d.num_values for name, d in self.space.items()}
        open_ended = [name for name, count in counts.items() if count is None]
        if open_ended:
            yield f"grid search needs choices or stepped ranges; {', '.join(open_ended)} is continuous or log"
            return
        size = math.prod(count for count in counts.values() if count is not None)
        if size > MAX_TRIALS:
            yield f"the grid has {size} points, at most {MAX_TRIALS} are allowed; take larger steps or fewer choices"

    def _start_complaints(self, where: str, start: Mapping[str, Scalar]) -> Iterator[str]:
        unknown = sorted(set(start) - set(self.space) - set(self.fixed))
        if unknown:
            yield f"{where} names {', '.join(unknown)}, found neither in space nor fixed"
        for name in start:
            wrong = self.space[name].why_not(start[name]) if name in self.space else ""
            if wrong:
                yield f"{where}.{name}: {wrong}"

    def _batch_complaints(self) -> Iterator[str]:
        """``batch`` is the one parameter that ScaMP itself reads."""
        dimension = self.space.get("batch")
        values: list[Scalar] = [
            candidate["batch"] for candidate in (self.fixed, *self.start_with) if "batch" in candidate
        ]
        if isinstance(dimension, Range):
            values += [dimension.low, dimension.high]
        elif isinstance(dimension, Choice):
            values += dimension.choice
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                yield f"batch is the number of samples per optimizer step, an integer of at least 1; got {value!r}"

    @property
    def report_every(self) -> int:
        return self.budget.report_every or max(1, math.ceil(self.budget.steps / 10))

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def _is_log(dimension: Choice | Range) -> bool:
    return isinstance(dimension, Range) and dimension.log


# --- reading text ----------------------------------------------------------------------------------------------------
class _Loader(yaml.SafeLoader):
    """Safe, and stricter: a repeated key is a mistake, and aliases can make a short text endless."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is repeated", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return super().construct_mapping(node, deep=deep)


def _load_yaml(text: str | bytes) -> Any:
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidInput(f"the study is {len(text)} bytes long, at most {MAX_TEXT_BYTES} are read")
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise InvalidInput("the study is nested too deeply to be one") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that does not exist
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidInput(f"the study is not valid YAML{where}: {what}") from None


# --- telling what is wrong -------------------------------------------------------------------------------------------
_PARTS: dict[str, type[BaseModel]] = {
    "objective": Objective,
    "search": Search,
    "stopping": Stopping,
    "budget": Budget,
}


def _words(error: ValidationError, most: int = 5) -> str:
    details = error.errors(include_url=False)
    said = list(dict.fromkeys(_complaint(detail) for detail in details))
    more = f"; and {len(said) - most} more" if len(said) > most else ""
    # What the user wrote is quoted, and may hold what no terminal or response can.
    return ("; ".join(said[:most]) + more).encode(errors="backslashreplace").decode()


def _complaint(detail: ErrorDetails) -> str:
    path = [part for n, part in enumerate(detail["loc"]) if not (n == 2 and detail["loc"][0] == "space")]
    where = ".".join(str(part) for part in path if part != "[key]")
    kind, message = detail["type"], detail["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return f"{where} is missing"
    if kind == "extra_forbidden":
        return _unknown_key(path, detail["loc"])
    if kind == "model_type":
        part = _PARTS.get(str(detail["loc"][0]), StudySpec)
        message = f"must be a mapping of {', '.join(part.model_fields)}"
    elif kind != "value_error":
        message = message.replace("Input should be ", "must be ").replace("String should", "must")
    shown = (
        "" if isinstance(detail["input"], Mapping | list) and detail["input"] else f" (got {_shown(detail['input'])})"
    )
    return f"{where}: {message}{shown}" if where else message


def _unknown_key(path: Sequence[int | str], loc: Sequence[int | str]) -> str:
    if loc[0] == "space":
        allowed = list((Choice if loc[2] == "choice" else Range).model_fields)
    else:
        allowed = list((_PARTS[str(loc[0])] if len(loc) > 1 else StudySpec).model_fields)
    close = difflib.get_close_matches(str(path[-1]), allowed, n=1)
    hint = f"did you mean {close[0]}?" if close else f"allowed are {', '.join(allowed)}"
    return f"{'.'.join(map(str, path))}: unknown key; {hint}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _listed(values: Iterable[Scalar], most: int = 10) -> str:
    shown = [repr(value) for value in values]
    return ", ".join(shown[:most]) + (", …" if len(shown) > most else "")

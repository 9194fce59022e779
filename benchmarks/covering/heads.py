"""Workloads of ``TransformersWorkload`` for every head of its automatic classes, over small models of many families.

Samples are random, and in each another number of labels counts. ``held_to_library`` compares a step with that of
``model(**batch).loss``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.covering.models.families import small_config
from benchmarks.covering.models.inputs import inputs_of
from scamp.workload.seeds import seed_everything
from workloads.adapters.transformers import IGNORED, TransformersWorkload
from workloads.refusals import WorkloadError, WrongResult
from workloads.sandbox.batch_check import expect_metrics_of_samples, why_whole
from workloads.training.metrics import as_pair

NUM, LENGTH, CHOICES, SEED = 4, 24, 3, 7
Sample = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """The name of its mapping in transformers, the task that ``inputs_of`` knows, and what is changed in its inputs."""

    mapping: str
    task: str
    change: Callable[[Sample, Any], Sample] = lambda sample, config: sample


def _short(sample: Sample, config: Any) -> Sample:
    """Fewer tokens, some of whose labels do not count: in each sample another number."""
    sample = {
        name: value[:, :LENGTH] if name in ("input_ids", "labels", "bbox") else value for name, value in sample.items()
    }
    return {**sample, "labels": _ignored(sample["labels"])} if "labels" in sample else sample


def _ignored(labels: Tensor) -> Tensor:
    labels = labels.clone()
    for number, row in enumerate(labels):
        row[: 2 + 3 * number] = IGNORED
    return labels


def _with(**make: Callable[[Tensor, Any], Tensor]) -> Callable[[Sample, Any], Sample]:
    """A change to short texts with other labels, each a function of the tokens and the configuration."""

    def change(sample: Sample, config: Any) -> Sample:
        kept = {name: value for name, value in _short(sample, config).items() if name != "labels"}
        return {**kept, **{name: function(kept["input_ids"], config) for name, function in make.items()}}

    return change


def _choices(sample: Sample, config: Any) -> Sample:
    kept = {name: value for name, value in _short(sample, config).items() if name != "labels"}
    choices = {name: torch.stack(CHOICES * [value], 1) for name, value in kept.items()}
    choices["input_ids"] = torch.stack([kept["input_ids"].roll(number, 1) for number in range(CHOICES)], 1)
    return {**choices, "labels": torch.arange(NUM) % CHOICES}


def _pixels(sample: Sample, config: Any) -> Sample:
    labels = sample["labels"].clone()
    for number, picture in enumerate(labels):
        picture[: 8 * number] = getattr(config, "semantic_loss_ignore_index", 255)
    return {**sample, "labels": labels}


def _masks(sample: Sample, config: Any) -> Sample:
    patches = (config.image_size // config.patch_size) ** 2
    masks = torch.arange(patches) < 1 + torch.arange(NUM)[:, None]
    return {"pixel_values": sample["pixel_values"], "bool_masked_pos": masks}


def _class_of_texts(tokens: Tensor, config: Any) -> Tensor:
    return torch.arange(len(tokens)) % 2


def _place(tokens: Tensor, config: Any) -> Tensor:
    return tokens[:, 0] % LENGTH


HEADS: Mapping[str, Head] = {
    "CausalLM": Head("CAUSAL_LM", "causal LM", _short),
    "MaskedLM": Head("MASKED_LM", "masked LM", _short),
    "Seq2SeqLM": Head("SEQ_TO_SEQ_CAUSAL_LM", "sequence to sequence", _short),
    "SpeechSeq2Seq": Head("SPEECH_SEQ_2_SEQ", "speech to text", _short),
    "ImageTextToText": Head(
        "IMAGE_TEXT_TO_TEXT", "image-text to text", lambda s, _: {**s, "labels": _ignored(s["labels"])}
    ),
    "SequenceClassification": Head("SEQUENCE_CLASSIFICATION", "causal LM", _with(labels=_class_of_texts)),
    "TokenClassification": Head("TOKEN_CLASSIFICATION", "causal LM", _with(labels=lambda t, _: _ignored(t % 2))),
    "QuestionAnswering": Head(
        "QUESTION_ANSWERING", "causal LM", _with(start_positions=_place, end_positions=lambda t, _: t[:, 1] % LENGTH)
    ),
    "MultipleChoice": Head("MULTIPLE_CHOICE", "causal LM", _choices),
    "NextSentencePrediction": Head("NEXT_SENTENCE_PREDICTION", "causal LM", _with(labels=_class_of_texts)),
    "PreTraining": Head("PRETRAINING", "causal LM", _short),
    "ImageClassification": Head("IMAGE_CLASSIFICATION", "image classification"),
    "VideoClassification": Head("VIDEO_CLASSIFICATION", "video classification"),
    "SemanticSegmentation": Head("SEMANTIC_SEGMENTATION", "semantic segmentation", _pixels),
    "MaskedImageModeling": Head("MASKED_IMAGE_MODELING", "image classification", _masks),
    "AudioClassification": Head("AUDIO_CLASSIFICATION", "audio classification"),
    "CTC": Head("CTC", "CTC"),
}
PROBLEMS = ("", "single_label_classification", "regression", "multi_label_classification")
"""Kinds of labels of a classification; without one, the model finds it out."""


def families_of(head: str) -> list[str]:
    """The families that have such a head."""
    mappings = import_module("transformers.models.auto.modeling_auto")
    return list(getattr(mappings, f"MODEL_FOR_{HEADS[head].mapping}_MAPPING_NAMES"))


def workload_of(head: str, family: str, problem: str = "") -> TransformersWorkload:
    """The workload of a small model of this family; a loss that balances experts is switched on if it has one."""
    transformers = import_module("transformers")

    class OfHead(TransformersWorkload):
        model_class = getattr(transformers, f"AutoModelFor{head}")
        default_batch = num_train = num_eval = NUM

        def config(self) -> Any:
            config = small_config(family)
            if hasattr(config, "output_router_logits"):
                config.output_router_logits = True
            if problem:
                config.problem_type, config.num_labels = problem, 1 if problem == "regression" else 2
            return config

        def train_batch(self, indices: Tensor) -> Sample:
            return {name: _rows(value, indices) for name, value in samples.items()}

        eval_batch = train_batch

    workload = OfHead({})
    torch.manual_seed(SEED)
    with torch.device("meta"):
        model = workload.build_model()
    samples = HEADS[head].change(inputs_of(model, HEADS[head].task)(NUM), model.config)
    if problem == "regression":
        samples["labels"] = torch.randn(NUM)
    if problem == "multi_label_classification":
        samples["labels"] = torch.randint(0, 2, (NUM, 2)).float()
    return workload


def _rows(value: Any, indices: Tensor) -> Any:
    """The rows of some samples; several rows may belong to one."""
    if not isinstance(value, Tensor):
        return value
    return value.unflatten(0, (NUM, -1))[indices].flatten(0, 1) if len(value) != NUM else value[indices]


class LibraryFails(Exception):
    """The model does not compute a loss of these inputs, whoever asks it."""


@dataclass(frozen=True, slots=True)
class Held:
    """Differences of the loss, and of its gradients relative to the largest, from those of the library.

    ``divided`` is the larger one for a batch in parts of one sample, and ``evaluated`` that of the metric; both are -1
    where a batch may not be divided. ``refusal`` are the words of a refusal.
    """

    error: float = 0.0
    gradients: float = 0.0
    divided: float = -1.0
    evaluated: float = -1.0
    refusal: str = ""


def held_to_library(workload: TransformersWorkload) -> Held:
    """How a step compares with that of ``model(**batch).loss``, in double precision where the model can do that.

    Raises ``LibraryFails``.
    """
    try:
        return _held(workload, torch.float64)
    except LibraryFails:
        return _held(workload, torch.float32)


def _held(workload: TransformersWorkload, dtype: torch.dtype) -> Held:
    torch.manual_seed(SEED)
    model = workload.build_model().to(dtype)
    every = torch.arange(NUM)

    def batch(indices: Tensor) -> Sample:
        of_samples = workload.train_batch(indices).items()
        return {name: value.to(dtype) if _is_real(value) else value for name, value in of_samples}

    def of_library() -> Iterator[Pair]:
        yield model(**batch(every)).loss, torch.tensor(1.0)

    def of_adapter(*parts: Tensor) -> Iterator[Pair]:
        for part in parts:
            total, count = as_pair(workload.loss(model, batch(part)))
            yield total, count

    try:
        expected = _step(model, of_library())
    except Exception as error:
        raise LibraryFails(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    try:
        errors = _differences(_step(model, of_adapter(every)), expected)
        is_whole = bool(why_whole(workload))
        expect_metrics_of_samples(workload)
    except (WorkloadError, WrongResult) as refused:
        return Held(refusal=str(refused).splitlines()[0])
    if is_whole:
        return Held(*errors)
    model.eval()  # parts would draw other random numbers
    expected = _step(model, of_library())
    divided = max(_differences(_step(model, of_adapter(*every.split(1))), expected))
    with torch.no_grad():
        measured: Any = workload.evaluate(model, batch(every))
    total, count = as_pair(measured["loss"])
    loss, expected_loss = (total.sum() / count.sum()).item(), expected[0]
    return Held(*errors, divided, abs(loss - expected_loss) / max(1.0, abs(expected_loss)))


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


Pair = tuple[Tensor, Tensor]
Step = tuple[float, list[Tensor]]


def _step(model: nn.Module, losses: Iterator[Pair]) -> Step:
    """The loss of a step and its gradients, from the sums and counts of its parts."""
    model.zero_grad()
    seed_everything(SEED)  # some models draw by NumPy
    totals, counts = 0.0, 0.0
    for total, count in losses:
        total.backward()
        totals, counts = totals + total.item(), counts + count.item()
    counts = counts or 1.0
    return totals / counts, [p.grad / counts for p in model.parameters() if p.grad is not None]


def _differences(step: Step, expected: Step) -> tuple[float, float]:
    (loss, gradients), (expected_loss, expected_gradients) = step, expected
    if len(gradients) != len(expected_gradients):
        return float("inf"), float("inf")
    scale = max((gradient.abs().max().item() for gradient in expected_gradients), default=0.0) or 1.0
    pairs = zip(gradients, expected_gradients, strict=True)
    largest = max(((gradient - other).abs().max().item() for gradient, other in pairs), default=0.0)
    return abs(loss - expected_loss) / max(1.0, abs(expected_loss)), largest / scale

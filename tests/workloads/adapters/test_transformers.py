"""The adapter for transformers trains and measures the model's own loss, whatever its head and its family are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from workloads.adapters.transformers import IGNORED, TransformersWorkload
from workloads.protocol import BATCHES, Workload
from workloads.refusals import WorkloadError
from workloads.sandbox.batch_check import expect_metrics_of_samples, why_whole
from workloads.training.metrics import as_pair
from workloads.training.samples import batch_indices
from workloads.training.step import train_step

transformers = pytest.importorskip("transformers")

NUM, CLASSES, VOCABULARY, IMAGE_TOKEN = 16, 3, 50, 49
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {**SIZES, "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
PICTURE = {**SIZES, "image_size": 16, "patch_size": 8}
WITHOUT_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
GPT = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.0, "embd_pdrop": 0.0}


def _texts(seed: int = 0) -> Iterator[Tensor]:
    """Random tokens, 4 to 9 of them."""
    draws = torch.Generator().manual_seed(seed)
    for number in range(NUM):
        yield torch.randint(5, 40, (4 + number % 6,), generator=draws)


def _language() -> list[dict[str, Any]]:
    return [{"input_ids": text, "labels": text} for text in _texts()]


def _of_texts(**labels: Any) -> list[dict[str, Any]]:
    """Texts with labels: each a function of the number of the sample."""
    return [
        {"input_ids": text, **{name: make(number) for name, make in labels.items()}}
        for number, text in enumerate(_texts())
    ]


def _answers() -> list[dict[str, Any]]:
    return _of_texts(start_positions=lambda n: n % 3, end_positions=lambda n: n % 4)


def _captions() -> list[dict[str, Any]]:
    seen = torch.full((4,), IMAGE_TOKEN)
    return [
        {
            "input_ids": torch.cat([seen, text]),
            "labels": torch.cat([torch.full_like(seen, IGNORED), text]),
            "pixel_values": torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(number)),
        }
        for number, text in enumerate(_texts())
    ]


def _bart() -> Any:
    sizes = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("attention_heads", "layers")}
    ffn = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 32}
    return transformers.BartConfig(d_model=16, vocab_size=VOCABULARY, **sizes, **ffn, **WITHOUT_DROPOUT)


def _llava() -> Any:
    return transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.CLIPVisionConfig(**{**PICTURE, "num_hidden_layers": 2}),
        image_token_id=IMAGE_TOKEN,
    )


def _bert(**options: Any) -> Any:
    return transformers.BertConfig(**TEXT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options)


def _mixture(**options: Any) -> Any:
    return transformers.MixtralConfig(**TEXT, num_key_value_heads=2, num_local_experts=4, **options)


HEADS: dict[str, tuple[str, Any, Any]] = {
    "gpt2": ("CausalLM", lambda: transformers.GPT2Config(vocab_size=VOCABULARY, attn_pdrop=0.0, **GPT), _language),
    "gpt_neo": (
        "CausalLM",
        lambda: transformers.GPTNeoConfig(
            num_layers=1,
            hidden_size=16,
            num_heads=2,
            max_position_embeddings=16,
            vocab_size=VOCABULARY,
            attention_types=[[["global"], 1]],
            **{f"{name}_dropout": 0.0 for name in ("resid", "embed", "attention")},
        ),
        _language,
    ),
    "bart": ("Seq2SeqLM", _bart, _language),
    "t5": (
        "Seq2SeqLM",
        lambda: transformers.T5Config(
            d_model=16,
            d_kv=8,
            d_ff=16,
            num_layers=1,
            num_heads=2,
            vocab_size=VOCABULARY,
            decoder_start_token_id=0,
            dropout_rate=0.0,
        ),
        _language,
    ),
    "experts": ("CausalLM", _mixture, _language),
    "masked": ("MaskedLM", _bert, _language),
    "classes": ("SequenceClassification", lambda: _bert(num_labels=3), lambda: _of_texts(labels=lambda n: n % 3)),
    "regression": ("SequenceClassification", lambda: _bert(num_labels=1), lambda: _of_texts(labels=float)),
    "several labels": (
        "SequenceClassification",
        lambda: _bert(num_labels=3, problem_type="multi_label_classification"),
        lambda: _of_texts(labels=lambda n: [float(n % 2), float(n % 3 == 0), 1.0]),
    ),
    "answers": (
        "QuestionAnswering",
        _bert,
        lambda: [{**sample, "input_ids": sample["input_ids"][:4]} for sample in _answers()],
    ),
    "choices": (
        "MultipleChoice",
        _bert,
        lambda: [
            {"input_ids": torch.stack([text, text.flip(0)]), "labels": number % 2}
            for number, text in enumerate(_texts())
        ],
    ),
    "captions": ("ImageTextToText", _llava, _captions),
}


def _workload(head: str, config: Any, samples: list[dict[str, Any]], **options: Any) -> TransformersWorkload:
    class Of(TransformersWorkload):
        model_class = getattr(transformers, f"AutoModelFor{head}")
        default_batch = NUM

        def config(self) -> Any:
            return config

        def dataset(self, split: str) -> list[dict[str, Any]]:
            return samples

        def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=1.0)

    for name, value in options.items():
        setattr(Of, name, value)
    return Of({})


def _model(workload: TransformersWorkload) -> Any:
    torch.manual_seed(0)
    return workload.build_model()


def _own_loss(workload: TransformersWorkload, model: Any) -> Tensor:
    loss = model(**workload.train_batch(torch.arange(NUM))).loss
    assert isinstance(loss, Tensor)
    return loss


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("name", HEADS)
def test_a_step_and_an_evaluation_have_the_models_own_loss_however_a_batch_is_divided(name: str) -> None:
    head, config, make = HEADS[name]
    workload = _workload(head, config(), make())
    model, divided = _model(workload), _model(workload)
    assert why_whole(workload) == ""
    expect_metrics_of_samples(workload)
    expected_loss = _own_loss(workload, model)
    expected_loss.backward()
    before = [parameter.detach().clone() for parameter in divided.parameters()]
    uneven = [workload.train_batch(indices) for indices in torch.arange(NUM).split(4)]
    loss = train_step(workload, divided, workload.optimizer(divided), uneven, len(uneven))
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-5)
    for old, parameter, expected in zip(before, divided.parameters(), model.parameters(), strict=True):
        gradient = torch.zeros_like(old) if expected.grad is None else expected.grad
        torch.testing.assert_close(old - parameter, gradient, rtol=1e-3, atol=2e-6)
    with torch.no_grad():
        measured: Any = workload.evaluate(model, workload.eval_batch(torch.arange(NUM)))
    total, count = as_pair(measured["loss"])
    assert (total.sum() / count.sum()).item() == pytest.approx(expected_loss.item(), rel=1e-5)


def test_a_model_that_no_name_betrays_does_not_learn_to_copy_its_input() -> None:
    """Random tokens cannot be predicted: the accuracy of the next one is far from that of a copy, which is 1."""
    _, config, make = HEADS["gpt2"]
    workload = _workload("CausalLM", config(), make())
    model = _model(workload)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for step in range(30):
        batch = workload.train_batch(batch_indices(NUM, 8, step, 0))
        train_step(workload, model, optimizer, [batch], 1)
    others = _workload("CausalLM", config(), [{"input_ids": text, "labels": text} for text in _texts(1)])
    with torch.no_grad():
        measured: Any = others.evaluate(model, others.eval_batch(torch.arange(NUM)))
    right, count = measured["accuracy"]
    assert right.sum() / count.sum() < 0.5 and count[0] == 3


def test_a_loss_that_balances_experts_is_trained_and_keeps_a_batch_whole() -> None:
    workload = _workload("CausalLM", _mixture(output_router_logits=True, router_aux_loss_coef=0.5), _language())
    model = _model(workload)
    total, count = workload.loss(model, workload.train_batch(torch.arange(NUM)))
    assert (total / count).item() == pytest.approx(_own_loss(workload, model).item(), rel=1e-6)
    assert "but the mean over their halves" in why_whole(workload)
    measured: Any = workload.evaluate(model, workload.eval_batch(torch.arange(NUM)))
    plain = _model(_workload("CausalLM", _mixture(), _language()))
    summed, num = measured["loss"]
    assert (summed.sum() / num.sum()).item() == pytest.approx(_own_loss(workload, plain).item(), rel=1e-5)
    expect_metrics_of_samples(workload)


@pytest.mark.parametrize(
    ("head", "config", "samples", "words"),
    [
        ("CausalLM", _mixture(output_router_logits=True), _language(), "such as one that balances experts"),
        (
            "PreTraining",
            _bert(),
            _of_texts(labels=lambda n: 4 * [n], next_sentence_label=lambda n: 0),
            "another number",
        ),
        ("CausalLM", _mixture(), _language(), ""),
    ],
)
def test_a_model_too_large_to_be_tried_is_judged_by_the_terms_of_its_loss(
    head: str, config: Any, samples: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workloads.sandbox.batch_check.MOST_PARAMETERS", 0)
    samples = [{**sample, "input_ids": sample["input_ids"][:4], "labels": sample["labels"][:4]} for sample in samples]
    workload = _workload(head, config, samples)
    assert why_whole(workload) == "", "nothing has been traced"
    workload.loss(_model(workload), workload.train_batch(torch.arange(4)))
    assert words in why_whole(workload) and bool(why_whole(workload)) == bool(words)
    workload.accepts_parts = True
    assert why_whole(workload) == ""


def test_a_loss_that_looks_at_padding_is_found() -> None:
    """A model that answers questions chooses among all places of a batch, also those that only fill it up."""
    workload = _workload("QuestionAnswering", _bert(), _answers())
    assert "but the mean over their halves" in why_whole(workload)
    with pytest.raises(WorkloadError, match="it would depend on the micro-batch of an evaluation"):
        expect_metrics_of_samples(workload)


def test_a_loss_is_tried_also_where_batches_come_by_index() -> None:
    config = _mixture(output_router_logits=True, router_aux_loss_coef=0.5)
    samples = _workload("CausalLM", config, _language()).train_batch(torch.arange(NUM))

    def batch(self: Any, indices: Tensor) -> dict[str, Tensor]:
        return {name: value[indices] for name, value in samples.items()}

    numbers = {"dataset": Workload.dataset, "num_train": NUM, "num_eval": NUM}
    workload = _workload("CausalLM", config, [], **dict.fromkeys(BATCHES, batch), **numbers)
    assert workload.lengths("train") is None and "but the mean over their halves" in why_whole(workload)


def test_a_batch_without_labels_or_with_things_that_are_no_tensors_is_refused_in_words() -> None:
    without = _workload("CausalLM", HEADS["gpt2"][1](), _of_texts())
    with pytest.raises(WorkloadError, match="GPT2LMHeadModel computes no loss of attention_mask, input_ids"):
        without.loss(_model(without), without.train_batch(torch.arange(2)))
    boxes = _workload("CausalLM", None, _of_texts(labels=lambda n: {"boxes": [0.0] * 4}))
    with pytest.raises(WorkloadError, match="a sample has as labels dict, which makes no tensor"):
        boxes.train_batch(torch.arange(2))


def test_metrics_of_the_whole_set_get_one_label_for_each_logit() -> None:
    head, config, make = HEADS["several labels"]
    workload = _workload(head, config(), make(), summarize=lambda self, outputs: {})
    evaluated: Any = workload.evaluate(_model(workload), workload.eval_batch(torch.arange(4)))
    _, outputs = evaluated
    assert outputs["preds"].shape == outputs["target"].shape == (4, 3)
    head, config, make = HEADS["masked"]
    tokens = _workload(head, config(), make(), summarize=lambda self, outputs: {})
    with pytest.raises(WorkloadError, match="override evaluate, and return what they need"):
        tokens.evaluate(_model(tokens), tokens.eval_batch(torch.arange(4)))

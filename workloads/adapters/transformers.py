"""Trains a model of Hugging Face's transformers: by its config, from a local folder, or with an adapter of ``peft``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from scamp.workload.datasets import SetName, opened_dataset
from workloads.adapters.comparisons import noted_comparisons
from workloads.protocol import Batch, Loss, Metrics, Outputs, Workload, defines
from workloads.refusals import WorkloadError, kinds_of

_PEFT = re.compile(r"\.(base_layer|original_module|modules_to_save\.\w+)(?=\.)")
"""Part of the names of weights that an adapter of peft leaves as they are, or trains whole."""
IGNORED = -100
"""Label of tokens that do not count, as in transformers."""


class TransformersWorkload(Workload):
    """Subclass it, name a ``model_class``, and define ``dataset``, and ``config`` or ``pretrained``.

    A sample of ``dataset`` is a mapping of lists or tensors, as a tokenizer makes it, with ``labels`` or what else the
    model's ``forward`` computes a loss from. Samples of a batch are padded to its longest. The loss is that of
    ``model(**batch)``, for the whole batch, also where a plan divides it. Metrics are ``loss``, without terms that
    compare no labels, and ``accuracy`` where labels are classes, over the samples or tokens of the held-out set.
    """

    model_class: ClassVar[Any]
    """Such as ``transformers.AutoModelForSequenceClassification``, or a class of one model."""
    pad_values: ClassVar[Mapping[str, int]] = {"labels": IGNORED}
    """Fills up sequences of different length, by the name of the tensor; 0 for all others."""

    pretrained: ClassVar[str] = ""
    """Optional: a folder with a config and weights, as ``save_pretrained`` writes them; all hosts must see it."""

    def config(self) -> Any:
        """The model's ``PretrainedConfig``; by default the one in the folder ``pretrained``."""
        if not self.pretrained:
            raise NotImplementedError(f"{type(self).__name__} needs a method config, or a folder pretrained")
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self.pretrained, local_files_only=True)

    def peft(self) -> Any | None:
        """Optional: a config of ``peft``, such as ``LoraConfig``; then only the adapter is trained."""
        return None

    def build_model(self) -> nn.Module:
        """A new model of ``config``, with the adapter of ``peft`` if there is one."""
        make = getattr(self.model_class, "from_config", None) or self.model_class._from_config
        config = self.config()
        for part in (config, *vars(config).values()):
            if hasattr(part, "use_cache"):
                part.use_cache = False  # of keys and values for the next token, which training never reads
        model: nn.Module = make(config)
        adapter = self.peft()
        if adapter is not None:
            from peft import get_peft_model

            model = get_peft_model(model, adapter)
        return model

    def load_weights(self, model: nn.Module) -> None:
        """Copy the weights in the folder ``pretrained``; what it does not have, such as a new head, is drawn."""
        if not self.pretrained:
            return
        read = self.model_class.from_pretrained(self.pretrained, config=self.config(), local_files_only=True)
        stored = read.state_dict()
        unwrapped: Any = model
        target: nn.Module = unwrapped.get_base_model() if hasattr(unwrapped, "get_base_model") else unwrapped
        with torch.no_grad():
            for name, tensor in target.state_dict().items():
                plain = _PEFT.sub("", name)
                if plain in stored:
                    tensor.copy_(stored[plain])

    def lengths(self, split: SetName) -> list[int] | None:
        """The number of tokens of each sample; None if samples have no ``input_ids``, or there is no ``dataset``."""
        if not defines(self, "dataset"):
            return None
        samples = opened_dataset(self, split)
        if len(samples) == 0 or "input_ids" not in samples[0]:
            return None
        return [torch.as_tensor(samples[index]["input_ids"]).shape[-1] for index in range(len(samples))]

    def collate(self, samples: list[Any]) -> Batch:
        """The samples as tensors, padded at the end, with an ``attention_mask`` where there are ``input_ids``."""
        rows = [{name: _tensor(name, value) for name, value in sample.items()} for sample in samples]
        if "input_ids" in rows[0]:
            rows = [{"attention_mask": torch.ones_like(row["input_ids"]), **row} for row in rows]
        return {name: self._padded(name, [row[name] for row in rows]) for name in rows[0]}

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The model's own loss; where it is divided by the labels that count, as a sum and their number."""
        num = _num_samples(batch)
        with noted_comparisons() as comparisons:
            loss = _loss_of(model, model(**batch), batch)
        if not self.trial.is_real:
            why = comparisons.why_whole(loss)
            self.indivisible = f"{type(model).__name__} {why}" if why else ""
        return (loss * comparisons.divisor, comparisons.divisor) if comparisons.compares_parts(num) else loss

    def evaluate(self, model: nn.Module, batch: Batch) -> Metrics | tuple[Metrics, Outputs]:
        """``loss`` and, where labels are classes, ``accuracy``: of each sample, or of its labels that count.

        If the subclass defines ``metrics`` or ``summarize``, these get the logits as ``preds`` and the labels as
        ``target``, where a sample has one label, or one for each of its logits.
        """
        num = _num_samples(batch)
        with noted_comparisons(measured=True) as comparisons:
            output = model(**batch)
            loss = _loss_of(model, output, batch)
            means: dict[str, Any] = {"loss": comparisons.of_samples(loss, num) if comparisons else loss.expand(num)}
        if right := comparisons.right_of_samples(num):
            means["accuracy"] = right
        if not (defines(self, "metrics") or defines(self, "summarize")):
            return means
        labels: Any = batch.get("labels")
        logits: Any = getattr(output, "logits", None)
        are_tensors = isinstance(labels, Tensor) and isinstance(logits, Tensor)
        if not are_tensors or len(logits) != num or (labels.ndim > 1 and labels.shape != logits.shape):
            raise WorkloadError(
                f"{type(self).__name__} defines metrics or summarize, which get the logits and labels of samples that "
                "have one label, or one for each logit: override evaluate, and return what they need"
            )
        return means, {"preds": logits, "target": labels}

    def _padded(self, name: str, rows: list[Tensor]) -> Tensor:
        """The rows as one tensor, filled up at the end of each dimension in which they differ."""
        if len({row.shape for row in rows}) == 1:
            return torch.stack(rows)
        if len({row.ndim for row in rows}) > 1:
            kinds = " and ".join(dict.fromkeys(map(kinds_of, rows)))
            raise WorkloadError(f"samples have as {name} {kinds}: give it the same number of dimensions in all samples")
        sizes = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
        padded = rows[0].new_full((len(rows), *sizes), self.pad_values.get(name, 0))
        for place, row in zip(padded, rows, strict=True):
            place[tuple(map(slice, row.shape))] = row
        return padded


def _tensor(name: str, value: Any) -> Tensor:
    """A value of a sample. Raises ``WorkloadError`` for what is no array of numbers, such as boxes by name."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise WorkloadError(
            f"a sample has as {name} {kinds_of(value)}, which makes no tensor: give numbers, or lists of them of equal "
            "length; models that want something else, such as boxes of each picture, need a Workload of their own"
        ) from None


def _loss_of(model: nn.Module, output: Any, batch: Batch) -> Tensor:
    """The loss that a model has computed. Raises ``WorkloadError`` if it has computed none."""
    loss = output.get("loss") if isinstance(output, Mapping) else output[0]
    if loss is None:
        raise WorkloadError(
            f"{type(model).__name__} computes no loss of {', '.join(batch)}: give samples the labels that its forward "
            "takes, or define loss and evaluate"
        )
    return loss if isinstance(loss, Tensor) else torch.as_tensor(loss)


def _num_samples(batch: Batch) -> int:
    """The number of samples; some models take the parts of all pictures of a batch in one tensor."""
    return len(next(batch[name] for name in ("input_ids", "labels", *batch) if name in batch))

"""Trains a model of Hugging Face's transformers: by its config, from a local folder, or with an adapter of ``peft``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.datasets import SetName, opened_dataset
from workloads.protocol import Batch, Loss, Metrics, Outputs, Workload, defines

_PEFT = re.compile(r"\.(base_layer|original_module|modules_to_save\.\w+)(?=\.)")
"""Part of the names of weights that an adapter of peft leaves as they are, or trains whole."""
IGNORED = -100
"""Label of tokens that do not count, as in transformers."""


class TransformersWorkload(Workload):
    """Subclass it, name a ``model_class``, and define ``dataset``, and ``config`` or ``pretrained``.

    A sample of ``dataset`` is a mapping of lists or tensors, as a tokenizer makes it, with ``labels``: one number, or
    one for each token. Samples of a batch are padded to its longest. The loss is the model's own: the mean over the
    samples or, with a label for each token, over the labelled tokens of the whole batch, as in transformers' Trainer.
    Metrics are ``loss``, and ``accuracy`` where labels are classes, over the samples or tokens of the held-out set.
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
        """The number of tokens of each sample; None if samples have no ``input_ids``."""
        samples = opened_dataset(self, split)
        if len(samples) == 0 or "input_ids" not in samples[0]:
            return None
        return [len(samples[index]["input_ids"]) for index in range(len(samples))]

    def collate(self, samples: list[Any]) -> Batch:
        """The samples as tensors, padded at the end, with an ``attention_mask`` where there are ``input_ids``."""
        rows = [{name: torch.as_tensor(value) for name, value in sample.items()} for sample in samples]
        if "input_ids" in rows[0]:
            rows = [{"attention_mask": torch.ones_like(row["input_ids"]), **row} for row in rows]
        return {name: self._padded(name, [row[name] for row in rows]) for name in rows[0]}

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The mean over the samples, or the sum over labelled tokens and their number."""
        output = model(**batch)
        if batch["labels"].ndim == 1:
            model_loss: Tensor = output.loss
            return model_loss
        totals, counts = self._token_losses(model, output.logits, batch["labels"])
        return totals.sum(), counts.sum()

    def evaluate(self, model: nn.Module, batch: Batch) -> Metrics | tuple[Metrics, Outputs]:
        """``loss`` and ``accuracy`` of each sample or, with a label for each token, of its tokens.

        If the subclass defines ``metrics`` or ``summarize``, these get the logits as ``preds`` and the labels as
        ``target``, where a sample has one label.
        """
        logits, labels = model(**batch).logits, batch["labels"]
        means = self._means(model, logits, labels)
        if labels.ndim > 1 or not (defines(self, "metrics") or defines(self, "summarize")):
            return means
        return means, {"preds": logits, "target": labels}

    def _means(self, model: nn.Module, logits: Tensor, labels: Tensor) -> Metrics:
        if labels.ndim > 1:
            shifted, targets = self._shifted(model, logits, labels)
            is_counted = targets != IGNORED
            right = (shifted.argmax(-1) == targets) & is_counted
            return {
                "loss": self._token_losses(model, logits, labels),
                "accuracy": (right.sum(-1), is_counted.sum(-1)),
            }
        if labels.is_floating_point():
            errors = functional.mse_loss(
                logits.reshape(len(labels), -1), labels.reshape(len(labels), -1), reduction="none"
            )
            return {"loss": errors.mean(-1)}
        return {
            "loss": functional.cross_entropy(logits, labels, reduction="none"),
            "accuracy": (logits.argmax(-1) == labels).float(),
        }

    def _padded(self, name: str, rows: list[Tensor]) -> Tensor:
        if rows[0].ndim == 0 or len({row.shape for row in rows}) == 1:
            return torch.stack(rows)
        fill = self.pad_values.get(name, 0)
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)

    def _token_losses(self, model: nn.Module, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the losses of each sample's labelled tokens, and the number of these, both [n]."""
        logits, labels = self._shifted(model, logits, labels)
        losses = functional.cross_entropy(
            logits.flatten(0, -2).float(), labels.flatten(), reduction="none", ignore_index=IGNORED
        ).view(labels.shape)
        return losses.sum(-1), (labels != IGNORED).sum(-1)

    @staticmethod
    def _shifted(model: nn.Module, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and the labels that they predict: those of the next token in a causal language model."""
        base = getattr(model, "base_model", model)
        kinds = {getattr(module, "loss_type", None) for module in (model, base, getattr(base, "model", base))}
        if "ForCausalLM" in kinds:
            return logits[:, :-1], labels[:, 1:]
        return logits, labels

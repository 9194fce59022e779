"""Which of two modules of Python a line comes from, by its bytes: a small BERT, trained whole or with LoRA."""

from __future__ import annotations

import argparse
import inspect
import statistics
from typing import Any

from transformers import AutoModelForSequenceClassification, BertConfig

from scamp import TransformersWorkload


class Texts(TransformersWorkload):
    model_class = AutoModelForSequenceClassification

    def config(self) -> BertConfig:
        width = self.params["width"]
        return BertConfig(
            vocab_size=256,
            hidden_size=width,
            num_hidden_layers=self.params["layers"],
            num_attention_heads=4,
            intermediate_size=2 * width,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )

    def dataset(self, split: str) -> list[dict[str, Any]]:
        samples = [
            {"input_ids": list(line.encode()[:64]), "labels": label}
            for label, module in enumerate((argparse, statistics))
            for line in inspect.getsource(module).splitlines()
            if len(line) > 20
        ]
        return [sample for place, sample in enumerate(samples) if (place % 5 == 0) == (split == "eval")]


class TextsWithLora(Texts):
    """Trains a low-rank adapter of the attention and the head; all other weights are frozen."""

    def peft(self) -> Any:
        from peft import LoraConfig

        return LoraConfig(r=self.params["rank"], target_modules=["query", "value"], modules_to_save=["classifier"])

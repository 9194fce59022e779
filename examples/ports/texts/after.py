"""Fine-tunes a small BERT with LoRA to tell which module of Python's standard library a line of code is from.

python before.py --epochs 3 --rank 4
"""

import argparse
import importlib
import inspect
import random

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from sklearn.metrics import accuracy_score, f1_score
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

from scamp import TransformersWorkload

MODULES = ["argparse", "statistics", "asyncio.tasks", "tarfile"]
MAX_LENGTH = 96
PAD, CLS, SEP = 0, 1, 2


def encode(text):
    """A byte-level tokenizer."""
    return [CLS, *(3 + byte for byte in text.encode()[: MAX_LENGTH - 2]), SEP]


def read_lines():
    texts, labels = [], []
    for label, name in enumerate(MODULES):
        source = inspect.getsource(importlib.import_module(name))
        for line in source.splitlines():
            if len(line.strip()) > 15:
                texts.append(line.strip())
                labels.append(label)
    return texts, labels


class LineDataset(Dataset):
    def __init__(self, texts, labels):
        self.input_ids = [encode(text) for text in texts]
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.input_ids[index], "labels": self.labels[index]}


def get_datasets():
    texts, labels = read_lines()
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    cut = len(order) * 4 // 5
    train, val = order[:cut], order[cut:]
    return (
        LineDataset([texts[i] for i in train], [labels[i] for i in train]),
        LineDataset([texts[i] for i in val], [labels[i] for i in val]),
    )


def collate(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    input_ids = torch.full((len(samples), longest), PAD)
    attention_mask = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in enumerate(samples):
        length = len(sample["input_ids"])
        input_ids[row, :length] = torch.tensor(sample["input_ids"])
        attention_mask[row, :length] = 1
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def build_model(hidden, layers, rank, alpha, dropout):
    config = BertConfig(
        vocab_size=259,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * hidden,
        max_position_embeddings=MAX_LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=PAD,
        num_labels=len(MODULES),
    )
    model = BertForSequenceClassification(config)
    lora = LoraConfig(
        task_type="SEQ_CLS", r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=["query", "key", "value"]
    )
    model = get_peft_model(model, lora)
    model.print_trainable_parameters()
    return model


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    losses, preds, labels = [], [], []
    for batch in loader:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        output = model(**batch)
        losses.append(output.loss.item())
        preds.extend(output.logits.argmax(-1).tolist())
        labels.extend(batch["labels"].tolist())
    return {
        "loss": float(np.mean(losses)),
        "accuracy": accuracy_score(labels, preds),
        "f1": f1_score(labels, preds, average="macro"),
    }


class Lines(TransformersWorkload):
    def build_model(self):
        return build_model(*(self.params[name] for name in ("hidden", "layers", "rank", "alpha", "dropout")))

    def dataset(self, split):
        return get_datasets()[split == "eval"]

    def collate(self, samples):
        return collate(samples)

    def scheduler(self, optimizer, steps):
        return get_linear_schedule_with_warmup(optimizer, int(self.params["warmup_ratio"] * steps), steps)

    def summarize(self, outputs):
        return {"f1": f1_score(outputs["target"], outputs["preds"].argmax(-1), average="macro")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warmup-ratio", type=float, default=0.1)
    parser.add_argument("--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--alpha", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--output", default="adapter")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, val_set = get_datasets()
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(val_set, 64, collate_fn=collate)

    model = build_model(args.hidden, args.layers, args.rank, args.alpha, args.dropout).to(device)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=args.weight_decay)
    steps = args.epochs * len(train_loader) // args.accumulate
    scheduler = get_linear_schedule_with_warmup(optimizer, int(args.warmup_ratio * steps), steps)

    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        for number, batch in enumerate(train_loader):
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            loss = model(**batch).loss / args.accumulate
            loss.backward()
            if (number + 1) % args.accumulate == 0:
                torch.nn.utils.clip_grad_norm_(trainable, args.max_grad_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if number % 20 == 0:
                print(f"epoch {epoch} batch {number}: loss {loss.item() * args.accumulate:.4f}")
        metrics = evaluate(model, val_loader, device)
        print(f"epoch {epoch}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        if metrics["accuracy"] > best:
            best = metrics["accuracy"]
            model.save_pretrained(args.output)


if __name__ == "__main__":
    main()

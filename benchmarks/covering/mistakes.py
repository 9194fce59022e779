"""Counts the mistakes and hostile inputs that the command line answers with one clear message.

Each of them is given to ``scamp estimate``, or as a study to ``scamp run``. An answer is clear if it comes in time,
with the documented exit code, in at most four lines, without a traceback or a path of ScaMP or torch, and with the
words that the user needs: the file and line marked ``# here``, what happened, what to do. The command line runs in this
process, and one trace process serves all.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

from benchmarks.running.results import Finding, listed
from scamp_service.cli.main import main as scamp
from scamp_service.settings import ROOT
from scamp_service.sizing.tracing.trace_pool import TracePool

TRACE_SECONDS = 2
LIMIT_SECONDS = 15.0  # for an answer; each trace has two seconds of processor time, and eight of waiting
MOST_LINES = 4
TITLE = "Mistakes and hostile code"
HEADER = ("clear", "seconds", "mistake")
ABOUT = """\
Mistakes of users, and code that means harm, given to `scamp estimate`, or as a study to `scamp run`. An answer is clear
if it comes in time, with the documented exit code, in at most four lines, without a traceback or a path of ScaMP or
torch, and names the user's line and what to do."""
OURS = re.compile(rf"Traceback|{re.escape(str(ROOT))}|site-packages|(scamp_service|workloads|estimators|torch)/\w")


@dataclass(frozen=True, slots=True)
class Mistake:
    """Files, the arguments of ``scamp``, and the words that a user needs. ``code`` is the exit code."""

    name: str
    files: Mapping[str, str | bytes]
    words: tuple[str, ...]
    arguments: tuple[str, ...] = ("estimate", "nets.py:make")
    code: int = 2

    def __str__(self) -> str:
        return self.name

    @property
    def required_words(self) -> list[str]:
        """The words, with the file and line that are marked in the files."""
        marked = [
            f"{file}, line {number}"
            for file, text in self.files.items()
            for number, line in enumerate(text.splitlines() if isinstance(text, str) else (), 1)
            if "# here" in line
        ]
        return [*marked, *self.words]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the command line, and how long it took."""

    code: int
    text: str
    seconds: float

    def faults(self, mistake: Mistake) -> list[str]:
        """Why it is not clear; empty if it is."""
        faults = []
        if self.code != mistake.code:
            faults.append(f"exit code {self.code} instead of {mistake.code}")
        if self.seconds > LIMIT_SECONDS:
            faults.append(f"took {self.seconds:.0f} s")
        if (lines := len(self.text.splitlines())) > MOST_LINES:
            faults.append(f"{lines} lines")
        if ours := OURS.search(self.text):
            faults.append(f"shows {ours[0]!r}")
        return faults + [f"does not say {words!r}" for words in mistake.required_words if words not in self.text]


def function(
    name: str,
    *words: str,
    top: str = "",
    init: str = "pass",
    forward: str = "return self.layer(x)",
    inputs: str = "return torch.zeros(batch, 8)",
    loss: str = "return model(x).square().mean()",
    returns: str = "return Net(), inputs, loss",
    options: tuple[str, ...] = (),
    code: int = 2,
) -> Mistake:
    """A mistake in one place of a function that makes a model; ``# here`` marks the line that the answer must name."""
    source = f"""
import ctypes, os, socket, sys, threading, time
import numpy as np
import torch
from torch import nn
{top}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.embedding = nn.Embedding(8, 8)
        {init}

    def forward(self, x):
        {forward}

def make(width=8):
    def inputs(batch):{_marked(inputs)}
        {inputs}

    def loss(model, x):{_marked(loss)}
        {loss}

    {returns}
"""
    return Mistake(name, {"nets.py": source}, words, ("estimate", "nets.py:make", *options), code)


def _marked(body: str) -> str:
    """A mark for the definition of a function whose result is wrong as a whole."""
    return "  # here" if body.endswith("# whole") else ""


def workload(
    name: str, *words: str, change: tuple[str, str] = ("", ""), options: tuple[str, ...] = (), code: int = 2
) -> Mistake:
    """A mistake in a class, in which ``change`` replaces one text by another."""
    source = """
import torch, os
from torch import nn
from torch.utils.data import DataLoader
from workloads.protocol import Workload

class Mine(Workload):
    num_train = num_eval = 64
    def build_model(self):
        return nn.Linear(8, self.params.get("width", 8))
    def train_batch(self, indices):
        return torch.zeros(len(indices), 8)
    def eval_batch(self, indices):
        return torch.zeros(len(indices), 8)
    def loss(self, model, batch):
        return model(batch).square().mean()
    def evaluate(self, model, batch):
        return {}
"""
    files = {"nets.py": source.replace(*change) if change[0] else source}
    return Mistake(name, files, words, ("estimate", "nets.py:Mine", *options), code)


def study(name: str, *words: str, text: str | bytes | None = None, nets: str = "", **changes: object) -> Mistake:
    """A study with a mistake, submitted by ``scamp run``: it is refused before anything starts."""
    spec: dict[str, object] = {
        "name": "mine",
        "workload": "vit_digits",
        "objective": {"metric": "accuracy"},
        "space": {"lr": {"low": 0.1, "high": 1.0}},
    }
    spec |= changes
    file = text if text is not None else json.dumps({key: value for key, value in spec.items() if value is not None})
    return Mistake(name, {"study.yaml": file} | ({"nets.py": nets} if nets else {}), words, ("run", "study.yaml"))


def arguments(name: str, *words: str, line: str) -> Mistake:
    """A mistake in the arguments of ``scamp estimate``."""
    return Mistake(name, {"empty.py": "", "folder.py/in": "", "study.yaml": GOOD_STUDY}, words, tuple(line.split()))


GOOD_STUDY = json.dumps({
    "name": "mine",
    "workload": "vit_digits",
    "objective": {"metric": "accuracy"},
    "space": {"width": {"choice": [16, 32]}},
})  # fmt: skip

FIRST = "data decide as the first samples do (nets.py:"
BOUNDED = "a mask chooses all that it may (nets.py:"

MISTAKES = (
    # values of the batch: answered, and it is said what is assumed
    function("print of a loss", "needs a device", code=0,
             loss="out = model(x).mean(); print(out.item()); return out"),
    function("format of a loss", "needs a device", code=0,
             loss="out = model(x).mean(); print(f'{out:.3f}'); return out"),
    function("float of a loss", "decides nothing (nets.py:", code=0,
             loss="out = model(x).mean(); float(out); return out"),
    function("range of a label", FIRST, code=0, loss="n = int(x.max()); return model(x).mean()"),
    function("one_hot without classes", FIRST, code=0,
             loss="return (model(x) * nn.functional.one_hot(x.long()).sum()).mean()"),
    function(".numpy() of a batch", FIRST, code=0, forward="return self.layer(x) * x.numpy().sum()"),
    # values that only a step knows
    function(".item() in forward", "keep the value in a tensor",
             forward="y = self.layer(x); return y[:int(y.max().item())]  # here"),
    function("if on a tensor", "torch.where", forward="y = self.layer(x); return y if y.sum() > 0 else 2 * y  # here"),
    function("nonzero", BOUNDED, code=0, forward="y = self.layer(x); return y[y.nonzero()[:, 0]]"),
    function("boolean mask", BOUNDED, code=0, forward="y = self.layer(x); return y[y > 0]"),
    function("range of a prediction", "take sizes from shapes",
             forward="y = self.layer(x); return y[:, :len(range(int(y.argmax())))]  # here"),
    function("one_hot of a prediction", "shapes or parameters",
             forward="y = self.layer(x); return y * nn.functional.one_hot(y.long()).sum()  # here"),
    function("numpy in forward", "keep the value in a tensor",
             forward="y = self.layer(x); return y * np.tanh(y).sum()  # here"),
    function(".numpy() in forward", "keep the value in a tensor",
             forward="y = self.layer(x); return y * y.detach().numpy().sum()  # here"),
    function("unique", "size depends on values",
             forward="y = self.layer(x); return y * len(torch.unique(y))  # here"),
    # wrong tensors
    function("inputs of another type", "scalar types: Long", ".to(dtype)", forward="return self.embedding(x)  # here"),
    function("inputs of another size", "[2, 9]", "sizes", inputs="return torch.zeros(batch, 9)",
             forward="return self.layer(x)  # here"),
    function("sizes that differ in forward", "[2, 8]", "sizes", forward="return x @ self.layer(x)  # here"),
    function("types that differ under autocast", "dtype", forward="with torch.autocast('cpu'): "
             "return self.layer(x).double() @ self.layer(x).T  # here"),
    function("targets of another type", "dtype", loss="return nn.functional.cross_entropy(model(x), x[:, 0])  # here"),
    function("in-place change of a parameter", "no_grad",
             forward="self.layer.weight.add_(1); return self.layer(x)  # here"),
    function("the model on a GPU", "leave devices", returns="return Net().to('cuda'), inputs, loss  # here"),
    function("a tensor on a GPU", "leave devices",
             forward="return self.layer(x) + torch.ones(8, device='cuda')  # here"),
    # wrong results
    function("returns only the model", "must return (model, inputs", returns="return Net()"),
    function("returns no model", "must return (model, inputs", returns="return 3, inputs"),
    function("inputs is a tensor", "must be a function", returns="return Net(), torch.zeros(4, 8), loss"),
    function("inputs ignores batch", "ignores its argument", inputs="return torch.zeros(4, 8)  # whole"),
    function("inputs is a generator", "generator", inputs="yield torch.zeros(batch, 8)  # whole"),
    function("inputs without a tensor", "no tensor", inputs="return None  # whole"),
    function("no loss", "not a loss", "loss(model, inputs)", returns="return Net(), inputs"),
    function("loss not scalar", "one number", ".mean()", loss="return model(x)  # whole"),
    function("loss detached", "no trained parameter", loss="return model(x).mean().detach()  # whole"),
    function("loss without gradients", "no_grad", loss="with torch.no_grad(): return model(x).mean()  # whole"),
    function("loss is a number", "instead of the loss", loss="return 0.5  # whole"),
    function("nothing is trained", "no trained parameter", init="self.requires_grad_(False)"),
    function("optimizer without parameters", "parameters",
             returns="return Net(), inputs, loss, lambda p: torch.optim.SGD([], 0.1)  # here"),
    function("an optimizer that needs a closure", "AdamW",
             returns="return Net(), inputs, loss, lambda p: torch.optim.LBFGS(p)  # here"),
    function("optimizer returns None", "a torch optimizer",
             returns="return Net(), inputs, loss, lambda p: None  # here"),
    workload("a class: loss not scalar", "one number", "nets.py, line 15", change=(".square().mean()", "")),
    workload("a class: no model", "nn.Module", "nets.py, line 9",
             change=('return nn.Linear(8, self.params.get("width", 8))', "return None")),
    workload("a class: abstract method missing", "evaluate", change=("def evaluate", "def judge")),
    workload("a class that is no Workload", "Workload", change=("Mine(Workload)", "Mine")),
    workload("DataLoader with workers", "1 rank", "needs a device", code=0, options=("--count", "1"), change=(
        "return torch.zeros(len(indices), 8)\n    def eval",
        "return next(iter(DataLoader(torch.zeros(64, 8), len(indices), num_workers=2)))\n    def eval")),
    workload("DataLoader whose worker dies", "num_workers=0", "nets.py, line 12", change=(
        "return torch.zeros(len(indices), 8)\n    def eval",
        "return next(iter(DataLoader(range(8), num_workers=1, collate_fn=lambda _: os._exit(1))))\n    def eval")),
    # files
    function("syntax error", "not valid Python", top="x = = 1  # here"),
    function("missing import", "nobody_has_this", "pip install", top="import nobody_has_this  # here"),
    function("raises when imported", "no such disk", top="raise RuntimeError('no such disk')  # here"),
    function("a download when imported", "network", "beforehand",
             top="socket.create_connection(('127.0.0.1', 9), 1)  # here"),
    function("a file that is not there", "--working-dir", top="open('weights.bin')  # here"),
    function("sys.exit when imported", "raise an exception", top="sys.exit(1)  # here"),
    Mistake("a binary file", {"nets.py": bytes(range(256))}, ("nets.py", "not valid Python")),
    Mistake("an empty file", {"nets.py": ""}, ("nets.py defines no class or function make",)),
    Mistake("a misspelt function", {"nets.py": "def mak(): ..."}, ("no class or function make",)),
    # hostile code
    function("a loop without end in __init__", "2 s of processor time", "--seconds",
             init="while True: pass  # here"),
    function("sleeps for ever", "longer than 8 s", inputs="time.sleep(1e6)  # here"),
    function("os._exit", "os._exit", "raise an exception", init="os._exit(3)"),
    function("sys.exit", "raise an exception", init="sys.exit('bye')  # here"),
    function("segfault", "SIGSEGV", init="ctypes.string_at(0)  # here"),
    function("an enormous list in the constructor", "memory", init="self.data = bytearray(2**40)  # here"),
    function("an enormous tensor when imported", "memory", top="data = torch.ones(2**40)  # here"),
    function("recursion", "end", forward="return self(x)  # here"),
    function("an enormous message", "x" * 50, init="raise KeyError('x' * 2**20)  # here"),
    function("a broken error", "Broken", top="class Broken(Exception):\n    def __str__(self): return 1 / 0",
             init="raise Broken()  # here"),
    function("huge output, then an error", "after", init="print('x' * 2**22); raise KeyError('after')  # here"),
    function("a thread left running", "1 rank", "needs a device", code=0,
             top="threading.Thread(target=time.sleep, args=(1e6,)).start()"),
    function("a fork left running", "1 rank", "needs a device", code=0, top="os.fork() or time.sleep(1e6)"),
    # parameters
    function("unknown parameter", "depth", "width=8", options=("--param", "depth=2")),
    function("parameter of a wrong type", "'wide'", init="self.other = nn.Linear(8, 'wide')  # here"),
    function("NaN as learning rate", "nan", options=("--param", "lr=.nan")),
    function("batch 0", "positive whole number", options=("--param", "batch=0")),
    function("batch negative", "positive whole number", options=("--param", "batch=-4")),
    workload("a parameter that the model refuses", "nets.py, line 10", options=("--param", "width=wide")),
    # arguments
    arguments("misspelt parameter of a study", "no parameter 'widht'", "width",
              line="estimate study.yaml --param widht=8"),
    arguments("parameter without a value", "NAME=VALUE", line="estimate vit_digits --param width"),
    arguments("--mib 0", "--mib", line="estimate vit_digits --mib 0"),
    arguments("--count 0", "--count", line="estimate vit_digits --count 0"),
    arguments("--seconds 0", "--seconds", line="estimate vit_digits --seconds 0"),
    arguments("unknown GPU", "H100", line="estimate vit_digits --device H1000"),
    arguments("a plan with an unknown field", "no field 'pt'", line="estimate vit_digits --plan micro_batch=4,pt=2"),
    arguments("an illegal plan", "spatial", line="estimate vit_digits --plan micro_batch=4,tp=2,spatial=2"),
    arguments("a module that does not exist", "nobody/nets.py", line="estimate nobody.nets:make"),
    arguments("a folder instead of a file", "folder.py", line="estimate folder.py:make"),
    arguments("unknown built-in", "vit_digits", line="estimate vit_digit"),
    arguments("a file without a name", "FILE.py:Class", line="estimate empty.py"),
    arguments("a folder", "FILE.py:Class", line="estimate ."),
    # studies
    study("a study with an unknown key", "spaces", spaces={}),
    study("a study without an objective", "objective", objective=None),
    study("a study with an empty range", "lr", space={"lr": {"low": 1.0, "high": 0.1}}),
    study("an empty study", "got nothing", text=""),
    study("a binary study", "study.yaml", text=bytes(range(128, 256))),
    study("a study that is no YAML", "line", text="name: [1, 2"),
    study("a study without its file", "nets.py", "does not exist", workload="nets.py:Mine"),
    study("a study of a function", "not trained", workload="nets.py:make",
          nets="def make(): ..."),
    study("a study whose file is broken", "no such disk", workload="nets.py:Mine",
          nets="class Mine: ...\nraise RuntimeError('no such disk')  # here"),
    Mistake("a folder as a study", {"study.yaml/in": ""}, ("study.yaml", "directory"), ("run", "study.yaml")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """An answer of the command line to a mistake, and what is not clear about it."""

    text: str
    seconds: float
    faults: list[str]

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the mistake."""
        return ["no: " + ", ".join(self.faults) if self.faults else "yes", f"{self.seconds:.1f}"]


def cases(quick: bool, seed: int) -> Sequence[Mistake]:
    return MISTAKES[:: 30 if quick else 1]


def measure(case: Mistake, seconds: float) -> Result:
    """The answer to one mistake; ``seconds`` is not used, because an estimate has its own limit."""
    with _warm_command_line():
        answer = answer_to(case)
    return Result(answer.text, answer.seconds, answer.faults(case))


def figures(results: Sequence[Result]) -> dict[str, float]:
    num_clear = sum(not result.faults for result in results)
    return {"mistakes": len(results), "mistakes_clear_pct": 100 * num_clear / len(results)}


def notes(findings: Sequence[Finding]) -> list[str]:
    """Every answer that is not clear, with its faults."""

    def words(finding: Finding) -> str:
        faults = [f"! {fault}" for fault in finding.values["faults"]]
        return "\n      ".join([*finding.values["text"].splitlines()[:12], *faults]) if faults else ""

    return listed(findings, words)


def answer_to(mistake: Mistake) -> Answer:
    """Runs ``scamp`` in a new folder with the files of ``mistake``. A file whose name ends in / is a folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, content in mistake.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        limit = ["--seconds", str(TRACE_SECONDS)] if "--seconds" not in mistake.arguments else []
        command_line = [*mistake.arguments, *(limit if mistake.arguments[0] == "estimate" else [])]
        out, err, code, began = io.StringIO(), io.StringIO(), 0, time.monotonic()
        with (
            patch.object(sys, "argv", ["scamp", *command_line]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                scamp()
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 0
            except Exception:  # a bug of ScaMP, which the user would see as a traceback
                code = 1
                traceback.print_exc()
        seconds = time.monotonic() - began
    shown = ("tracing ", "its defaults: ")  # while the traces are made; so is each plan as soon as it is known
    said = [line for line in err.getvalue().splitlines() if not (line.startswith(shown) or ": peak " in line)]
    said += [line for line in out.getvalue().splitlines() if line.startswith("→")]  # of a table, its conclusion
    return Answer(code, "\n".join(said), seconds)


@contextlib.contextmanager
def _warm_command_line() -> Iterator[None]:
    """Have all estimates of this process share one trace process, and a data directory of their own."""
    pool, data_dir = _shared()
    with (
        patch.dict(os.environ, {"SCAMP_DATA_DIR": data_dir}),
        patch("scamp_service.sizing.estimate.TracePool", lambda: pool),
    ):
        yield


@cache
def _shared() -> tuple[TracePool, str]:
    """A trace process and a folder that last until this process ends."""

    class Kept(TracePool):
        def __exit__(self, *exc_info: object) -> None:
            """Keep its process for the next estimate."""

    pool, folder = Kept(1), tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    atexit.register(TracePool.__exit__, pool)
    return pool, folder.name

"""Everything that a user's file imports from ScaMP: ``Workload``, and what a model can say about how to divide it.

A ``Workload`` is the model, data, loss and evaluation of one candidate. With ``Chain``, ``Split``, ``Spatial``,
``Divided`` and ``Experts`` its model supports more plans, with ``hints`` it asks for some of them, and with
``inheritance`` it begins with the weights of another candidate. A workload never spreads its model itself:
``workloads.parallel`` divides the model, and ``workloads.training`` makes micro-batches, checkpoints and reports.
``workloads.loading`` loads user files, in trace and rank processes only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from scamp.workload import hints, inheritance
from scamp.workload.datasets import Count, SetName, plain_batch
from scamp.workload.experts import Experts
from scamp.workload.trial import TrialContext

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.optim.lr_scheduler import LRScheduler

__all__ = [
    "Batch",
    "Chain",
    "Context",
    "Divided",
    "Experts",
    "Parts",
    "Phase",
    "Spatial",
    "Split",
    "Tables",
    "Workload",
    "hints",
    "inheritance",
]

Batch = Any  # a pytree of tensors whose first dimension is the sample
Outputs = Any  # a pytree of tensors whose first dimension is the sample
Loss = Any  # a scalar: a mean over samples; or a pair of scalars: a sum, and what it is divided by
Optimizers = Any  # an optimizer of torch, or a list of them
Metrics = Mapping[str, Any]  # by name the values of samples, shape [n]; or pairs of sums and counts, each of shape [n]

BATCHES = ("train_batch", "eval_batch")
"""The methods that a workload without ``dataset`` must define."""


class Workload(ABC):
    """One candidate's training. Subclass it, and name the class in a study: ``workload: model.py:MyWorkload``.

    ``params`` holds the sampled and fixed parameters of the candidate. ScaMP itself reads ``batch``, the number of
    samples in one optimizer step over all ranks; without it, it takes ``default_batch``. It also reads the options of
    updates, such as ``clip_norm`` (see ``workloads.options``). Raise ``ValueError`` in the constructor for parameters
    that make no sense: the message becomes the reason why the candidate is infeasible.
    """

    default_batch = 32
    trial = TrialContext()
    """The trial that is trained: ``study_id``, ``number``, ``attempt``, ``rank`` and ``world_size``; set before
    ``build_model``. ``trial.is_real`` is False in traces and dry runs."""
    num_workers = 0
    """Processes of each rank that read samples of ``dataset`` ahead; 0: the rank reads them itself."""
    accepts_parts = False
    """Set it to True to accept that micro-batches and ranks change what is trained or measured, where the loss or a
    metric is no mean over samples. Otherwise only plans that do not divide a batch are possible."""
    indivisible = ""
    """Why ranks and micro-batches might change the loss, where it is too large to be tried; ``loss`` may set it."""
    reads_slabs = False
    """Set it to True if batches have the part of space that ``trial.slab`` names, instead of whole samples: ranks that
    divide space (``Spatial``) then read no more of a file than they need."""
    prefetch = 2
    """Micro-batches that each of these processes reads ahead."""
    tp_plan: Mapping[str, str] | None = None
    """Optional: how tensor-parallel ranks divide layers, in the notation of transformers, such as
    ``{"layers.*.up": "colwise", "layers.*.down": "rowwise"}``. None: by the ``tp_plan`` of the model, if it has one."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params = params

    def __init_subclass__(cls, **others: Any) -> None:
        super().__init_subclass__(**others)
        if cls.phases is not Workload.phases and cls.loss is Workload.loss:
            cls.loss = _no_loss  # type: ignore[method-assign]

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A new model, its parameters initialised from torch's global generator.

        It is also called on the meta device and in fake mode, so do no I/O here, and give every parameter and buffer
        the same shape at each call.
        """

    if TYPE_CHECKING:  # an attribute of the class, one that the constructor sets, or a property

        @property
        def num_train(self) -> int:
            """Number of training samples; by default the length of ``dataset("train")``."""

        @property
        def num_eval(self) -> int:
            """Number of held-out samples; by default the length of ``dataset("eval")``."""

    else:
        num_train, num_eval = Count("train"), Count("eval")

    def train_batch(self, indices: Tensor) -> Batch:
        """The training samples ``indices`` (int64, shape [n]), in host memory; called with any n.

        Define it and ``eval_batch``, or ``dataset``.
        """
        return plain_batch(self, "train", indices)

    def eval_batch(self, indices: Tensor) -> Batch:
        """The held-out samples ``indices`` (int64, shape [n]), in host memory."""
        return plain_batch(self, "eval", indices)

    def dataset(self, split: SetName) -> Any:
        """Instead of batches by index: the set ``"train"`` or ``"eval"``, a torch ``Dataset`` or any sequence.

        It is called once for each set. Python's, NumPy's and torch's generators are seeded before each sample is read,
        so its random numbers do not depend on the plan. An ``IterableDataset`` with a length works too, with at most
        one worker and without ``order``.
        """
        raise NotImplementedError

    def collate(self, samples: list[Any]) -> Batch:
        """The batch of these ``samples`` of ``dataset``, by default stacked by torch; it may draw no random numbers."""
        return default_collate(samples)

    def augment(self, sample: Any, generator: torch.Generator) -> Any:
        """A training sample of ``dataset``, changed at random; ``generator`` is new for each sample and epoch."""
        return sample

    def batch_transform(self, batch: Batch, generator: torch.Generator, step: int) -> Batch:
        """A micro-batch of training samples, changed as a whole in optimizer step ``step``: to another size, say.

        It runs on the rank. ``generator`` is the same for all micro-batches and ranks of a step, so draw numbers for
        the step; numbers for each sample are drawn in ``augment``.
        """
        return batch

    def largest_batch(self, batch: Batch) -> Batch:
        """The batch in the largest size that ``batch_transform`` makes in any step; memory is predicted for it.

        By default the largest of 32 steps.
        """
        raise NotImplementedError

    def order(self, epoch: int, generator: torch.Generator) -> Tensor | Sequence[int]:
        """Indices of the training samples of ``epoch`` (from 0) in their order, by default one shuffle of them all.

        Indices may repeat, and some may be left out. All epochs have the same length, which is at least ``batch``.
        ``generator`` is seeded by the study and the epoch.
        """
        return torch.randperm(self.num_train, generator=generator)

    def lengths(self, split: SetName) -> Tensor | Sequence[int] | None:
        """The length of each sample of a set, where samples differ in size; memory is predicted for the longest ones.

        None: all samples have the same size.
        """
        return None

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss, a scalar: the *mean* over the samples, so that micro-batches average to the effective batch.

        A mean over something else, such as tokens that count, is returned as a pair ``(total, count)``. The gradients
        are then those of the totals of all micro-batches and ranks, divided by their counts.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module, batch: Batch) -> Metrics | tuple[Metrics, Outputs]:
        """Metric name → one value per sample, shape [n]; the runtime averages them over all held-out samples.

        A pair ``(totals, counts)``, each of shape [n], is a metric that is divided by the counts of all samples.

        With ``metrics`` or ``summarize`` it returns a pair: such values, which may be an empty dictionary, and what
        these need of the batch: a tensor, or a tuple or dictionary of tensors, whose first dimension is the sample.
        """

    def metrics(self) -> Any:
        """Optional: metrics of the whole held-out set, new ones at each call: name → a ``torchmetrics.Metric``.

        Any object with ``update`` and ``compute`` will do, and so does a collection that computes a dictionary. It gets
        the outputs of ``evaluate`` on the CPU: a dictionary by the names of its parameters, a tuple by their order.
        """
        raise NotImplementedError

    def summarize(self, outputs: Outputs) -> Mapping[str, float]:
        """Optional: metrics of the whole held-out set, from the outputs of all its samples in their order, on the CPU.

        It runs on one rank.
        """
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> Optimizers:
        """A new optimizer; by default AdamW with the candidate's ``lr`` (1e-3) and ``weight_decay`` (0.01).

        A list of optimizers of different parameters updates with all of them in every step.
        """
        return torch.optim.AdamW(
            model.parameters(),
            lr=_number_in(self.params, "lr", 1e-3),
            weight_decay=_number_in(self.params, "weight_decay", 0.01),
        )

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler | Sequence[LRScheduler] | None:
        """Optional: a scheduler of ``torch.optim.lr_scheduler``, or several, for a training of ``steps`` steps.

        It is called for each of several optimizers in turn. ScaMP steps schedulers after every optimizer step, and
        stores their states in checkpoints. ``ReduceLROnPlateau`` is stored
        as well; ``on_evaluate`` steps it.
        """
        return None

    def on_evaluate(self, metrics: Mapping[str, float]) -> None:  # noqa: B027 - may stay empty
        """Called on every rank after each evaluation, with the metrics that are reported, as with ``train_loss``."""

    def illustrate(self, model: nn.Module, step: int) -> None:
        """Optional: show what ``model`` has learned after ``step`` steps, such as samples, pictures or texts.

        ``step`` counts epochs where the study does. All ranks call it after each evaluation, in evaluation mode,
        without gradients, with the same random numbers and with averaged weights if there are any. New tensors are on
        the model's device. Call ``model(...)``, not its parts; keep files by ``artifact``.
        """
        raise NotImplementedError

    def phases(self) -> Sequence[Phase]:
        """Optional: several losses, each with an optimizer of its own, that take turns in every step, as in a GAN.

        They replace ``loss`` and ``optimizer``. All phases of a step get the same samples.
        """
        return ()

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The repeated blocks, which are sharded and recomputed one by one; default: the longest ``nn.ModuleList``."""
        lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
        return max(lists, key=len, default=[])

    @classmethod
    def space(cls) -> Mapping[str, Any]:
        """Optional: the search space of studies that have none, in the form of a study's ``space``."""
        return {}

    def load_weights(self, model: nn.Module) -> None:  # noqa: B027 - may stay empty
        """Optional: fill the new ``model`` with weights to start from, such as those of a file that all hosts can read.

        The model is whole and in host memory: plans divide it afterwards. Called on the first rank, once for a trial,
        never in a trace. The rest of the model keeps what ``build_model`` drew.
        """

    def inherit(self, model: nn.Module, parent: nn.Module, parent_params: Mapping[str, Any]) -> None:
        """Optional: fill the new ``model`` of this candidate from the trained ``parent``, as far as they agree.

        ``parent`` is the model that the class builds of ``parent_params``. Both are whole and in host memory: plans
        divide the model afterwards. Called on the first rank, where studies inherit weights; ``inheritance`` helps.
        """
        raise NotImplementedError

    def artifact(self, name: str, content: Path | str | bytes) -> None:
        """Keep a file with the trial: ``content`` is its path, or its bytes. It is listed and downloaded by ``name``.

        Every rank may call it; rank 0 stores the file. A name that exists gets the new content. ``name`` may contain
        ``/``. Raises ``ValueError`` for other names, and without such a file. Nothing is kept in traces and dry runs.
        """
        self.trial.keep(name, content)

    def epoch(self, step: int) -> int:
        """The epoch of optimizer step ``step``, both counted from 0. It may begin with samples of the one before."""
        return step // self.trial.epoch_steps

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027 - may stay empty
        """Called on every rank before optimizer step ``step`` (from 0) of ``steps``.

        A resumed run does not repeat earlier steps, so compute what depends on the step (``group["lr"]``, the weight of
        a term of the loss) from ``step`` alone, or from ``epoch(step)``.
        """


def _number_in(params: Mapping[str, Any], name: str, default: float) -> float:
    value = params.get(name, default)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}, but the default optimizer needs a number") from None


def _no_loss(self: Workload, model: nn.Module, batch: Batch) -> Tensor:
    raise NotImplementedError("the workload trains in phases, each with a loss of its own")


def defines(workload: Workload | type[Workload], method: str) -> bool:
    """Whether a class of the user defines this optional method."""
    owner = workload if isinstance(workload, type) else type(workload)
    default = getattr(Workload, method)
    return getattr(owner, method, default) is not default


@dataclass(frozen=True, slots=True)
class Phase:
    """One of several losses of a step, and the optimizer of the parameters that it trains.

    ``loss(model, batch)`` returns a mean over the samples, or a sum and its count, like ``Workload.loss``.
    ``optimizer(model)`` returns a new optimizer of some of the parameters; no two phases train the same. The phase
    takes its turn in the step ``first``, counted from 0, and in ``every`` such step after it. ``clip_norm`` limits the
    norm of its gradients, instead of the parameter of this name.
    """

    name: str
    loss: Callable[[nn.Module, Batch], Loss]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    every: int = 1
    first: int = 0
    clip_norm: float | None = None

    def turns_before(self, step: int) -> int:
        """The number of turns in the steps before ``step``."""
        return max(0, -(-(step - self.first) // self.every))


class Parts(nn.ModuleDict):
    """Several networks as one model, such as ``Parts(generator=…, discriminator=…)`` of a GAN.

    ``model("generator", noise)`` calls one, as plans need it; ``model["generator"].parameters()`` are its parameters.
    """

    def __init__(self, **networks: nn.Module) -> None:
        super().__init__(networks)

    def forward(self, name: str, *inputs: Any) -> Any:
        """The output of the network ``name`` for these inputs."""
        return self[name](*inputs)


@dataclass(frozen=True, slots=True)
class Split:
    """How a block's layers can be divided. A block that supports this has a ``Split`` as its attribute ``split``.

    ``columns`` names linear layers that are divided by their outputs. ``rows`` names linear layers that take these
    outputs: they are divided by their inputs, and their results are summed over the ranks. Between the two, every rank
    computes only its own part, so the block's ``forward`` must read the size of that part from the tensors. ``norms``
    names normalisations that treat each position on its own. ``most_parts`` is the number of attention heads; the
    number of parts must divide it. ``branches`` names submodules that each contain some of these columns and rows, and
    whose output is the sum of the outputs of their parts; only co-shard needs them. ``summed`` names layers between the
    columns and the rows that every rank has whole, such as a normalisation of each head: their gradients are added up.
    """

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    norms: tuple[str, ...]
    most_parts: int
    branches: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All layers that are named."""
        return self.norms + self.columns + self.rows + self.summed


@dataclass(frozen=True, slots=True)
class Spatial:
    """How the spatial dimension of samples is divided. A model that supports this has it as its attribute ``spatial``.

    ``dims`` holds one entry for each tensor of a batch, in order: the dimension that is divided, or None where every
    rank gets the whole tensor. The size of that dimension must be a multiple of ``multiple_of`` times the number of
    ranks; ``multiple_of`` is the factor by which the model shrinks space on its way down. Convolutions, poolings and
    normalisations must be modules. Everything else in ``forward`` and in the loss must apply the same operation to
    each position on its own, except for a mean over all positions at the end. After ``nn.AdaptiveAvgPool3d(1)`` each
    rank has the mean over all of space; linear layers on it are convolutions with a kernel of 1.
    """

    dims: tuple[int | None, ...]
    multiple_of: int = 1


@dataclass(frozen=True, slots=True)
class Context(Spatial):
    """How sequences are divided (context parallelism), instead of space. A model has it as its attribute ``spatial``.

    ``dims`` holds the dimension of the sequence for each tensor of a batch, or None. The number of ranks must divide
    its length. Ranks exchange what ``scaled_dot_product_attention`` needs; it may be causal, but have no mask. All else
    must treat every position in the same way and independently of the others, except a mean over all of them in the
    loss. Numbers of positions are a tensor of the batch, because a rank cannot count them.
    """


@dataclass(frozen=True, slots=True)
class Divided:
    """Layers that all data-parallel ranks may divide, whatever has the rest: attribute ``divided`` of a model.

    ``names`` are those of ``nn.Linear``, of ``nn.Embedding`` and ``nn.EmbeddingBag``, or of modules that contain
    embeddings. Each rank then has some columns, which are features of the output, and the number of ranks must divide
    them. In every pass all ranks must run these layers equally often. ``Experts`` need no such names. Raises
    ``ValueError`` for a name instead of a tuple.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        names: Any = self.names
        if isinstance(names, str):
            raise ValueError(f"names is a tuple: Divided(({names!r},))")


Tables = Divided
"""The name in 0.1.0, when models had it as their attribute ``divided_tables``."""


@dataclass(frozen=True, slots=True)
class PipelinePlace:
    """The stages of a pipeline that a rank has, and the process group of all ranks of the pipeline, in their order.

    ``stages`` are of ``estimators.model.Stage``, and ``num_blocks`` are the blocks of the whole model.
    """

    stages: tuple[Any, ...]
    group: ProcessGroup
    num_blocks: int = 0


class Chain(nn.Module, ABC):
    """A model that a pipeline can cut into stages: ``enter``, then each of ``blocks``, then ``leave``.

    Subclass it and put the blocks into ``blocks``. ``enters`` names the attributes that only ``enter`` uses, ``leaves``
    those that only ``leave`` uses.
    """

    enters: ClassVar[tuple[str, ...]]
    leaves: ClassVar[tuple[str, ...]]
    blocks: nn.ModuleList
    place: PipelinePlace | None = None
    """None: this process has the whole model."""

    @abstractmethod
    def enter(self, *inputs: Any, **options: Any) -> Tensor:
        """The input of the first block, computed from that with which the model is called."""

    @abstractmethod
    def leave(self, x: Tensor) -> Tensor:
        """The model's output, computed from ``x``, the output of the last block."""

    @abstractmethod
    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        """Shape of the input and of the output of every block, for ``num_samples`` samples."""

    @property
    def is_first(self) -> bool:
        """Whether this process has the first stage, or the whole model."""
        return self.place is None or self.place.stages[0].index == 0

    @property
    def is_last(self) -> bool:
        """Whether this process has the last stage, or the whole model."""
        return self.place is None or self.place.stages[-1].index == self.place.stages[-1].count - 1

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """The output of this process's stage; the input of a later stage is the output of the stage before it."""
        x: Tensor = self.enter(*inputs, **options) if self.is_first else inputs[0]
        for block in self.blocks:
            x = block(x)
        return self.leave(x) if self.is_last else x.contiguous()  # it is sent, which a view cannot be

"""The parts that programs of users are drawn from: data, losses, hooks, state, schedules and optimizers.

A part gives lines to some places of the file; ``benchmarks.curves.programs`` has the places. Some depend on how a batch
is divided, some keep what a checkpoint must have, most do neither. ``LATE`` is a step, ``LIMIT`` a number.
"""

from __future__ import annotations

from collections.abc import Mapping

Part = Mapping[str, str]
"""Place in the file → lines there."""

_EACH = "losses = functional.cross_entropy(logits, labels, reduction='none')\n"

LABELS = (
    "torch.arange(80) % 4",
    "torch.arange(80) // 20",
    "torch.arange(80).roll(11) // 20",
    "torch.randint(0, 4, (80,), generator=numbers)",
    "torch.randint(0, 4, (80,), generator=numbers).sort()[0]",
)
LENGTHS = (
    "torch.arange(80) % 5 + 1",
    "torch.arange(80) // 16 + 1",
    "torch.randint(1, 6, (80,), generator=numbers)",
    "torch.randint(1, 6, (80,), generator=numbers).sort(descending=True)[0]",
)

_BATCHES = {
    "data": """
def train_batch(self, indices):
    return self.points[indices], self.labels[indices]

def eval_batch(self, indices):
    return self.points[64 + indices], self.labels[64 + indices]
"""
}
DATA = (
    _BATCHES,
    {
        "data": """
def dataset(self, split):
    first, last = (0, 64) if split == "train" else (64, 80)
    return torch.utils.data.TensorDataset(self.points[first:last], self.labels[first:last])
"""
    },
    {
        "data": """
def dataset(self, split):
    places = range(64) if split == "train" else range(64, 80)
    return [(self.points[place], self.labels[place]) for place in places]

def augment(self, sample, generator):
    points, label = sample
    return points + 0.1 * torch.randn(points.shape, generator=generator), label
"""
    },
    {
        "data": """
def dataset(self, split):
    return InOrder(self, range(64) if split == "train" else range(64, 80))
""",
        "bottom": """
class InOrder(torch.utils.data.IterableDataset):
    def __init__(self, workload, places):
        self.workload, self.places = workload, places

    def __len__(self):
        return len(self.places)

    def __iter__(self):
        for place in self.places:
            yield self.workload.points[place], self.workload.labels[place]
""",
    },
    {
        "data": """
def train_batch(self, indices):
    noise = torch.randn(self.points[indices].shape)
    return self.points[indices] + 0.1 * noise, self.labels[indices]

def eval_batch(self, indices):
    return self.points[64 + indices], self.labels[64 + indices]
"""
    },
    _BATCHES
    | {
        "method": """
def order(self, epoch, generator):
    return torch.arange(64)
"""
    },
    _BATCHES
    | {
        "method": """
def order(self, epoch, generator):
    return torch.multinomial(1.0 + self.labels[:64].reshape(64, -1).clamp(0)[:, 0], 64, True, generator=generator)
"""
    },
    _BATCHES
    | {
        "method": """
def batch_transform(self, batch, generator, step):
    points, labels = batch
    return points * (0.5 + torch.rand(1, generator=generator)), labels
"""
    },
)

# Losses see ``logits`` and ``labels`` of samples, or ``losses`` of tokens where samples have several.
MEANS = (
    "return functional.cross_entropy(logits, labels)",
    "return functional.cross_entropy(logits, labels, label_smoothing=0.1)",
    "return (functional.cross_entropy(logits, labels, reduction='none') * (1 + labels)).mean()",
    "return functional.cross_entropy(logits, labels, weight=WEIGHTS, reduction='sum'), WEIGHTS[labels].sum()",
    "return functional.mse_loss(logits, functional.one_hot(labels, CLASSES).float())",
    "return functional.multi_margin_loss(logits, labels)",
    "chances = logits.softmax(-1).gather(1, labels[:, None])\nreturn -((1 - chances) ** 2 * chances.log()).mean()",
    "penalty = sum(parameter.square().sum() for parameter in model.parameters())\n"
    "return functional.cross_entropy(logits, labels) + 1e-3 * penalty",
    "return functional.cross_entropy(logits, labels) + 1e-2 * logits.logsumexp(-1).square().mean()",
    _EACH + "return losses.sum(), len(losses)",
    "target = logits.detach().softmax(-1)\n"
    "return functional.cross_entropy(logits, 0.9 * functional.one_hot(labels, CLASSES) + 0.1 * target)",
)
COUPLED = (
    "return functional.cross_entropy(logits, labels, weight=WEIGHTS)",
    "return functional.cross_entropy(logits, torch.where(points[:, 0] > LIMIT, labels, -100))",
    "return functional.cross_entropy(logits, labels, reduction='sum') / 16",
    "return functional.cross_entropy(logits, labels) + 0.1 * (logits.softmax(-1).mean(0) ** 2).sum()",
    "return functional.cross_entropy(logits, labels) + 0.1 * logits.std()",
    _EACH + "return losses.topk(len(losses) // 2)[0].mean()",
    _EACH + "return losses[losses > losses.median()].mean()",
    _EACH + "return losses.square().mean().sqrt()",
    _EACH + "weights = losses.detach() / losses.detach().sum()\nreturn (weights * losses).sum()",
    "hits = logits.softmax(-1) * functional.one_hot(labels, CLASSES)\n"
    "return 1 - (2 * hits.sum(0) + 1).div(logits.softmax(-1).sum(0) + functional.one_hot(labels, CLASSES).sum(0) + 1)"
    ".mean()",
    "near = functional.normalize(logits, dim=-1) @ functional.normalize(logits, dim=-1).T\n"
    "same = (labels[:, None] == labels).float()\n"
    "return functional.cross_entropy(5 * near, same / same.sum(-1, keepdim=True))",
    "logits = (logits - logits.mean(0)) / (logits.std(0, correction=0) + 0.1)\n"
    "return functional.cross_entropy(logits, labels)",
    "seen = functional.one_hot(labels, CLASSES).sum(0)\n"
    "return functional.cross_entropy(logits + (seen + 1.0).log(), labels)",
    _EACH + "return torch.stack("
    "[losses[labels == label].mean() for label in range(CLASSES) if (labels == label).any()]\n).mean()",
    "first, second = logits[labels < 2, 0], logits[labels >= 2, 0]\n"
    "return functional.cross_entropy(logits, labels) + (1 + first[:, None] - second).clamp(0).sum() / 64",
)
LATER = (
    {
        "net": "self.gate = nn.Parameter(torch.zeros(1))",
        "inside": "if self.training:\n    x = x + self.gate * (x.mean(0) - x)",
    },
    {
        "net": "self.gate = nn.Parameter(torch.zeros(1))",
        "inside": "if self.training:\n    near = x.flatten(1) @ x.flatten(1).T\n"
        "    x = x + self.gate * (near.softmax(-1) @ x.flatten(1)).view(x.shape)",
    },
    {
        "on_step": "self.share = max(0.0, 0.5 * (step - LATE))",
        "loss": "return functional.cross_entropy(logits, labels) + self.share * logits.mean(0).square().sum()",
    },
    {
        "on_step": "self.share = 0.5 if step >= LATE else 0.0",
        "loss": "return functional.cross_entropy(logits, labels) + self.share * logits.std()",
    },
    {
        "on_step": "self.step = step",
        "loss": "loss = functional.cross_entropy(logits, labels)\n"
        "return loss + 0.2 * logits.softmax(-1).mean(0).square().sum() if self.step > LATE else loss",
    },
    {
        "on_step": "self.is_warm = step > LATE",
        "loss": "weight = WEIGHTS if self.is_warm else None\n"
        "return functional.cross_entropy(logits, labels, weight=weight)",
    },
    {
        "on_step": "self.progress = step / steps",
        "loss": "coupled = logits.softmax(-1).mean(0).square().sum()\n"
        "return functional.cross_entropy(logits, labels) + max(0.0, self.progress - 0.3) * coupled",
    },
    {
        "init": "self.weights = torch.ones(CLASSES)",
        "on_step": "self.weights = WEIGHTS if step == LATE else torch.ones(CLASSES)",
        "loss": "return functional.cross_entropy(logits, labels, weight=self.weights)",
    },
    {
        "init": "self.num_steps = 0",
        "on_step": "self.num_steps += 1",
        "loss": "loss = functional.cross_entropy(logits, labels)\n"
        "return loss + 0.1 * logits.var(0).sum() if LATE < self.num_steps < LATE + 3 else loss",
    },
    {
        "on_step": "self.hardness = min(1.0, step / (LATE + 1))",
        "loss": "losses = functional.cross_entropy(logits, labels, reduction='none')\n"
        "easy = losses <= losses.quantile(0.5 + 0.5 * self.hardness)\nreturn (losses * easy).sum() / easy.sum()",
    },
)

RAGGED_MEANS = (
    "return losses.sum(), counted.sum()",
    "return (losses.sum(1) / counted.sum(1)).mean()",
    "return losses.sum(1).mean() / TOKENS",
    "return (losses.sum(1) / counted.sum(1).sqrt()).mean()",
    "weights = WEIGHTS[labels.clamp(0)] * counted\nreturn (losses * weights).sum(), weights.sum()",
    "last = counted.sum(1, keepdim=True) - 1\nreturn losses.gather(1, last).mean()",
)
RAGGED_COUPLED = (
    "return losses.sum() / counted.sum()",
    "return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())",
    "return losses[counted].mean()",
    "return functional.cross_entropy(logits.transpose(1, 2), labels, weight=WEIGHTS)",
    "return losses.sum(1).mean() / counted.sum(1).max()",
    "return losses.sum(1).mean() + 0.1 * (losses.sum() / counted.sum() - 1).square()",
)
RAGGED_LATER = (
    {
        "on_step": "self.is_warm = step >= LATE",
        "loss": "if self.is_warm:\n    return losses.sum() / counted.sum()\n"
        "return (losses.sum(1) / counted.sum(1)).mean()",
    },
    {
        "on_step": "self.share = min(1.0, step / 8)",
        "loss": "means = (losses.sum(1) / counted.sum(1)).mean()\n"
        "return (1 - self.share) * means + self.share * losses.sum() / counted.sum()",
    },
    {
        "on_step": "self.most = 2 + step // 2",
        "loss": "counted = counted & (torch.arange(TOKENS) < self.most)\n"
        "return (losses * counted).sum(), counted.sum()",
    },
)

HOOKS = (
    {"build": "model.last.weight.register_hook(lambda gradient: gradient * 0.5)"},
    {"build": "model.last.weight.register_hook(lambda gradient: gradient + 0.01)"},
    {"build": "model.first.weight.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))"},
    {"build": "model.last.bias.register_hook(lambda gradient: gradient - gradient.mean())"},
    {"build": "for parameter in model.parameters():\n    parameter.register_hook(torch.sign)"},
    {
        "build": "model.first.register_forward_hook(clamp_gradient)",
        "bottom": """
def clamp_gradient(module, inputs, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
""",
    },
    {
        "build": "model.norm.register_forward_hook(unit_gradient)",
        "bottom": """
def unit_gradient(module, inputs, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-6))
""",
    },
    {
        "build": "model.first.register_forward_hook(unit_rows)",
        "bottom": """
def unit_rows(module, inputs, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: functional.normalize(gradient, dim=-1))
""",
    },
    {
        "build": "model.last.bias.register_post_accumulate_grad_hook(halve)",
        "bottom": """
def halve(parameter):
    parameter.grad.mul_(0.5)
""",
    },
    {
        "build": "model.last.weight.register_post_accumulate_grad_hook(cut)",
        "bottom": """
def cut(parameter):
    parameter.grad.clamp_(-0.05, 0.05)
""",
    },
    {
        "build": "model.last.register_full_backward_hook(scaled)",
        "bottom": """
def scaled(module, inputs, outputs):
    return tuple(None if gradient is None else gradient * 2 for gradient in inputs)
""",
    },
    {
        "build": "model.last.register_full_backward_pre_hook(limited)",
        "bottom": """
def limited(module, outputs):
    return tuple(gradient / gradient.norm().clamp(min=0.1) for gradient in outputs)
""",
    },
    {
        "build": "model.last.register_forward_pre_hook(scaled)",
        "bottom": """
def scaled(module, inputs):
    return (inputs[0] * 1.5,)
""",
    },
    {
        "build": "model.norm.register_forward_hook(centred)",
        "bottom": """
def centred(module, inputs, output):
    return output - output.mean(0) if module.training else output
""",
    },
    {"before": "if logits.requires_grad:\n    logits.register_hook(lambda gradient: gradient.clamp(-0.03, 0.03))"},
    {
        "before": "if logits.requires_grad:\n    logits.register_hook(self.note)\nlogits = logits / (1 + self.seen)",
        "init": "self.seen = 0.0",
        "method": """
def note(self, gradient):
    self.seen = 0.9 * self.seen + gradient.abs().mean()
""",
    },
    {
        "before": "logits = Reversed.apply(logits, 0.5)",
        "bottom": """
class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(context, x, share):
        context.share = share
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return context.share * gradient, None
""",
    },
    {
        "before": "logits = Limited.apply(logits)",
        "bottom": """
class Limited(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient / gradient.abs().max().clamp(min=1e-3)
""",
    },
)

STATES = (
    {
        "init": "self.mean = 0.0",
        "before": "self.mean += 0.1 * (logits.detach().abs().mean() - self.mean)\nlogits = logits / (1 + self.mean)",
    },
    {
        "init": "self.history = []",
        "before": "self.history.append(float(logits.detach().max()))\nlogits = logits / (2 + max(self.history[-4:]))",
    },
    {
        "init": "self.recent = collections.deque(maxlen=3)",
        "before": "self.recent.append(logits.detach().std())\nlogits = logits / (1 + sum(self.recent))",
    },
    {"on_step": "self.age = step", "before": "logits = logits * (1 + 0.1 * self.age)"},
    {"init": "self.age = 0", "on_step": "self.age += 1", "before": "logits = logits * (1 + 0.1 * self.age)"},
    {
        "init": "self.ages = np.zeros(CLASSES)",
        "on_step": "self.ages[step % CLASSES] += 0.2",
        "before": "logits = logits + torch.tensor(self.ages, dtype=torch.float32)",
    },
    {
        "init": "self.shifts = torch.zeros(CLASSES)",
        "on_step": "self.shifts[step % CLASSES] += 0.3",
        "before": "logits = logits + self.shifts",
    },
    {
        "init": "self.shifts = {'all': [0.0]}",
        "on_step": "self.shifts['all'].append(0.1 * step)",
        "before": "logits = logits * (1 + sum(self.shifts['all']))",
    },
    {
        "class": "num_calls = 0",
        "on_step": "type(self).num_calls += 1",
        "before": "logits = logits * (1 + 0.1 * self.num_calls)",
    },
    {"top": "calls = []", "on_step": "calls.append(step)", "before": "logits = logits * (1 + 0.1 * len(calls))"},
    {
        "top": "num_steps = 0",
        "on_step": "global num_steps\nnum_steps += 1",
        "before": "logits = logits / 2 if num_steps > LATE else logits",
    },
    {
        "init": "counter = itertools.count()\nself.is_late = lambda: next(counter) > LATE",
        "on_step": "self.share = 1.0 if self.is_late() else 0.0",
        "before": "logits = logits + self.share * logits.softmax(-1)",
    },
    {
        "top": "temperature = 1.0",
        "on_step": "global temperature\ntemperature *= 1.2",
        "before": "logits = logits / temperature",
    },
    {
        "init": "counter = iter(range(10**9))\nself.tick = lambda: next(counter)",
        "on_step": "self.ticks = self.tick()",
        "before": "logits = logits * (1 + 0.1 * self.ticks)",
    },
    {
        "init": "counter = iter(range(10**9))\nself.tick = lambda: next(counter)",
        "before": "logits = logits * (1 + 0.01 * self.tick())",
    },
    {
        "init": "self.steps = itertools.count()",
        "on_step": "self.ticks = next(self.steps)",
        "before": "logits = logits * (1 + 0.1 * self.ticks)",
    },
    {
        "init": "self.meter = Meter()",
        "on_step": "self.meter.add(0.2)",
        "before": "logits = logits * self.meter.value",
        "bottom": """
class Meter:
    def __init__(self):
        self.value = 1.0

    def add(self, number):
        self.value += number
""",
    },
    {
        "on_step": "remembered(step)",
        "before": "logits = logits + 0.1 * len(remembered(None))",
        "bottom": """
def remembered(step, steps=[]):
    if step is not None:
        steps.append(step)
    return steps
""",
    },
    {"on_step": "self.noise = torch.randn(CLASSES)", "before": "logits = logits + 0.3 * self.noise"},
    {"on_step": "self.noise = random.random()", "before": "logits = logits * (1 + self.noise)"},
    {
        "on_step": "self.noise = torch.tensor(np.random.rand(CLASSES), dtype=torch.float32)",
        "before": "logits = logits + 0.3 * self.noise",
    },
    {
        "init": "self.own = torch.Generator().manual_seed(5)",
        "on_step": "self.noise = torch.randn(CLASSES, generator=self.own)",
        "before": "logits = logits + 0.3 * self.noise",
    },
    {
        "init": "self.own = np.random.default_rng(5)",
        "on_step": "self.noise = float(self.own.random())",
        "before": "logits = logits * (1 + self.noise)",
    },
    {
        "init": "self.own = {'noise': random.Random(5)}",
        "on_step": "self.noise = self.own['noise'].random()",
        "before": "logits = logits * (1 + self.noise)",
    },
    {
        "top": "dice = random.Random(3)",
        "on_step": "self.noise = dice.random()",
        "before": "logits = logits * (1 + self.noise)",
    },
    {
        "top": "dice = np.random.default_rng(3)",
        "on_step": "self.noise = float(dice.random())",
        "before": "logits = logits * (1 + self.noise)",
    },
    {
        "init": "self.best = 9.0",
        "method": """
def on_evaluate(self, metrics):
    self.best = min(self.best, metrics["loss"])
""",
        "before": "logits = logits / self.best",
    },
    {
        "init": "self.worse = 0",
        "method": """
def on_evaluate(self, metrics):
    self.worse += metrics["loss"] > 1.0
""",
        "before": "logits = logits * (1 + 0.1 * self.worse)",
    },
)

INSIDES = (
    {"net": "self.gate = nn.Parameter(torch.zeros(1))", "inside": "x = x + self.gate * x.mean(0)"},
    {"net": "self.gate = nn.Parameter(torch.zeros(8))", "inside": "x = x * (1 + self.gate)"},
    {
        "net": "self.mean = torch.zeros(())",
        "inside": "if self.training:\n    self.mean.mul_(0.9).add_(0.1 * x.detach().mean())\nx = x - self.mean",
    },
    {
        "net": "self.mean = torch.zeros(())",
        "inside": "if self.training:\n    self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()\nx = x - self.mean",
    },
    {"net": "self.calls = 0", "inside": "if self.training:\n    self.calls += 1\nx = x * (1 + 0.01 * self.calls)"},
    {
        "net": "self.register_buffer('level', torch.zeros(()))",
        "inside": "if self.training:\n    self.level += 0.1\nx = x * (1 + self.level)",
    },
    {
        "net": "self.register_buffer('level', torch.zeros(()), persistent=False)",
        "inside": "if self.training:\n    self.level += 0.1\nx = x * (1 + self.level)",
    },
    {
        "net": "self.scales = [1.0]",
        "inside": "if self.training:\n    self.scales.append(self.scales[-1] * 1.05)\nx = x * self.scales[-1]",
    },
    {
        "net": "self.register_buffer('codes', torch.zeros(8))",
        "inside": "if self.training:\n    self.codes.lerp_(x.detach().flatten(0, -2).mean(0), 0.2)\nx = x - self.codes",
    },
    {
        "net": "self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))",
        "inside": "x = self.spectral(x)",
    },
    {
        "net": "self.tied = nn.Linear(8, 8)\nself.tied.weight = self.blocks[0].up.weight",
        "inside": "x = x + self.tied(x)",
    },
    {"net": "self.scale = nn.Parameter(torch.ones(()))", "inside": "x = x * self.scale"},
    {"net": "self.unused = nn.Linear(8, 8)"},
    {"net": "self.extra = nn.Linear(8, 8)", "inside": "if x.detach().mean() > LIMIT / 4:\n    x = x + self.extra(x)"},
    {"net": "self.anchor = nn.Linear(8, 8).requires_grad_(False)", "inside": "x = x + self.anchor(x)"},
)

OPTIMIZERS = (
    {"optimizer": "return torch.optim.SGD(model.parameters(), 0.1)"},
    {"optimizer": "return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)"},
    {"optimizer": "return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=0.01)"},
    {"optimizer": "return torch.optim.AdamW(model.parameters(), 0.01)"},
    {"optimizer": "return torch.optim.Adam(model.parameters(), 0.01, amsgrad=True)"},
    {"optimizer": "return torch.optim.RMSprop(model.parameters(), 0.005, momentum=0.5)"},
    {"optimizer": "return torch.optim.Adagrad(model.parameters(), 0.05)"},
    {"optimizer": "return torch.optim.NAdam(model.parameters(), 0.01)"},
    {"optimizer": "return torch.optim.RAdam(model.parameters(), 0.02)"},
    {"optimizer": "return torch.optim.Adadelta(model.parameters(), 1.0)"},
    {"optimizer": "return torch.optim.Adamax(model.parameters(), 0.01)"},
    {"optimizer": "return torch.optim.ASGD(model.parameters(), 0.05)"},
    {"optimizer": "return torch.optim.SGD([{'params': model.last.parameters()}], 0.1, momentum=0.9)"},
    {
        "optimizer": """
decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}], 0.01)
"""
    },
    {
        "optimizer": """
last = set(model.last.parameters())
others = [parameter for parameter in model.parameters() if parameter not in last]
return [torch.optim.SGD(others, 0.1), torch.optim.Adam(model.last.parameters(), 0.01)]
"""
    },
)
OWN_OPTIMIZERS = (
    {
        "optimizer": "return Signs(model.parameters(), lr=0.005)",
        "bottom": """
class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr, mix=0.9):
        super().__init__(params, {"lr": lr, "mix": mix})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                state["mean"].lerp_(parameter.grad, 1 - group["mix"])
                parameter.sub_(group["lr"] * torch.tanh(100 * state["mean"]))
""",
    },
    {
        "optimizer": "return Trusting(model.parameters(), lr=0.02)",
        "bottom": """
class Trusting(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    trust = (parameter.norm() + 0.1) / (parameter.grad.norm() + 0.1)
                    parameter.sub_(group["lr"] * trust * parameter.grad)
""",
    },
    {
        "optimizer": "return Clipped(model.parameters(), 0.2, momentum=0.9)",
        "bottom": """
class Clipped(torch.optim.SGD):
    def step(self, closure=None):
        every = [parameter for group in self.param_groups for parameter in group["params"]]
        nn.utils.clip_grad_norm_(every, 0.2)
        super().step(closure)
""",
    },
    {
        "optimizer": """
optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
optimizer.register_step_pre_hook(clip)
return optimizer
""",
        "bottom": """
def clip(optimizer, *rest):
    nn.utils.clip_grad_norm_([parameter for group in optimizer.param_groups for parameter in group["params"]], 0.2)
""",
    },
    {
        "optimizer": """
optimizer = torch.optim.SGD(model.parameters(), 0.2)
optimizer.register_step_pre_hook(lambda *rest: nn.utils.clip_grad_value_(model.parameters(), 0.03))
return optimizer
"""
    },
    {
        "optimizer": """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
optimizer.register_step_post_hook(lambda *rest: limit(model))
return optimizer
""",
        "bottom": """
@torch.no_grad()
def limit(model):
    for parameter in model.parameters():
        parameter.clamp_(-0.4, 0.4)
""",
    },
    {
        "optimizer": "return Patient(model.parameters(), lr=0.1)",
        "bottom": """
class Patient(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.num_steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["sum"] = state.get("sum", 0) + parameter.grad
                if self.num_steps % 2 == 0:
                    parameter.sub_(group["lr"] * state.pop("sum") / 2)
""",
    },
    {
        "optimizer": "return Skipping(model.parameters(), 0.1)",
        "bottom": """
class Skipping(torch.optim.SGD):
    def step(self, closure=None):
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        gradients = [gradient for gradient in gradients if gradient is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.mul_(norm < 0.5)
        super().step(closure)
""",
    },
    {
        "optimizer": "return Scaled(model.parameters(), 0.1)",
        "before": "logits = logits.float()",
        "bottom": """
class Scaled(torch.optim.SGD):
    scale = 64.0

    @torch.no_grad()
    def step(self, closure=None):
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        halves = [(gradient * self.scale * 512).half() for gradient in gradients if gradient is not None]
        if all(bool(half.isfinite().all()) for half in halves):
            super().step(closure)
            self.scale *= 1.5
        else:
            self.scale /= 2
""",
    },
    {
        "optimizer": "return Slow(model.parameters(), 0.1)",
        "bottom": """
class Slow(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["num_steps"] = group.get("num_steps", 0) + 1
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
                if group["num_steps"] % 3 == 0:
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)
""",
    },
    {
        "optimizer": "return Centred(model.parameters(), 0.1, momentum=0.9)",
        "bottom": """
class Centred(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.ndim > 1:
                    parameter.grad.sub_(parameter.grad.mean(1, keepdim=True))
        super().step(closure)
""",
    },
    {
        "optimizer": "return Noisy(model.parameters(), 0.1)",
        "bottom": """
class Noisy(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["temperature"] = 0.9 * group.get("temperature", 1.0)
            for parameter in group["params"]:
                parameter.mul_(1 - 0.01 * group["temperature"])
""",
    },
    {"optimizer": "return torch.optim.Adafactor(model.parameters(), 0.02)"},
    {"optimizer": "return torch.optim.Rprop(model.parameters(), 0.005)"},
    {
        "optimizer": """
matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
return [torch.optim.Muon(matrices, 0.02), torch.optim.AdamW(others, 0.01)]
"""
    },
)
PHASES: Part = {
    "method": """
def phases(self):
    return [
        Phase("body", self.loss, lambda model: torch.optim.SGD(model.first.parameters(), 0.1)),
        Phase("head", self.loss, lambda model: torch.optim.Adam(model.last.parameters(), 0.01), every=2),
    ]
"""
}

SCHEDULES = (
    {"on_step": "for group in optimizer.param_groups:\n    group['lr'] = 0.05 / (1 + step)"},
    {"on_step": "for group in optimizer.param_groups:\n    group['lr'] *= 0.9"},
    {"on_step": "if step == LATE:\n    for group in optimizer.param_groups:\n        group['lr'] /= 10"},
    {"scheduler": "return lr_scheduler.StepLR(optimizer, 2, 0.5)"},
    {"scheduler": "return lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))"},
    {"scheduler": "return lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps, cycle_momentum=False)"},
    {"scheduler": "return lr_scheduler.CosineAnnealingLR(optimizer, steps)"},
    {"scheduler": "return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)"},
    {
        "scheduler": "warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=LATE)\n"
        "rest = lr_scheduler.ExponentialLR(optimizer, 0.7)\n"
        "return lr_scheduler.SequentialLR(optimizer, [warmup, rest], [LATE])"
    },
    {
        "scheduler": "return [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), "
        "lr_scheduler.MultiStepLR(optimizer, [LATE])]"
    },
    {
        "scheduler": "self.plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1, threshold=0.1)\n"
        "return self.plateau",
        "method": """
def on_evaluate(self, metrics):
    self.plateau.step(metrics["loss"])
""",
    },
    {
        "held": "self.decay = lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)",
        "on_step": "if step:\n    self.decay.step()",
    },
    {"held": "self.decay = lr_scheduler.StepLR(optimizer, 2, 0.5)", "on_step": "self.decay.step()"},
    {
        "scheduler": "counter = itertools.count()\n"
        "return lr_scheduler.LambdaLR(optimizer, lambda step: 0.9 ** next(counter))"
    },
)
CHANGES = (
    {"on_step": "if step == LATE:\n    optimizer.param_groups[0]['weight_decay'] = 0.1"},
    {
        "on_step": "if step == LATE:\n    for group in optimizer.param_groups:\n"
        "        group['momentum'] = 0.5 if 'momentum' in group else 0"
    },
    {"on_step": "if step == LATE:\n    optimizer.state.clear()"},
    {
        "on_step": "for parameter in self.model.first.parameters():\n    parameter.requires_grad_(step >= LATE)",
        "build": "self.model = model",
    },
    {
        "on_step": "if step == LATE:\n    for parameter in self.model.first.parameters():\n"
        "        parameter.requires_grad_(True)",
        "build": "for parameter in model.first.parameters():\n    parameter.requires_grad_(False)\nself.model = model",
    },
    {
        "on_step": "if step == LATE:\n"
        "    optimizer.add_param_group({'params': list(self.model.first.parameters()), 'lr': 0.02})",
        "build": "self.model = model",
        "optimizer": "return torch.optim.SGD([*model.norm.parameters(), *model.last.parameters()], 0.1)",
    },
    {
        "on_step": "if step == LATE:\n    optimizer.add_param_group({'params': list(self.model.first.parameters())})",
        "held": "self.model = model",
        "optimizer": "return torch.optim.Adam(model.last.parameters(), 0.01)",
    },
    {
        "on_step": "if step == LATE:\n    with torch.no_grad():\n        self.model.last.weight.mul_(0.5)",
        "held": "self.model = model",
    },
    {
        "on_step": "if step == LATE:\n    with torch.no_grad():\n"
        "        self.model.last.weight.copy_(torch.randn(CLASSES, 8))",
        "held": "self.model = model",
    },
    {
        "held": "self.teacher = [copy.deepcopy(model)]",
        "on_step": "with torch.no_grad():\n"
        "    for slow, parameter in zip(self.teacher[0].parameters(), self.model.parameters(), strict=True):\n"
        "        slow.lerp_(parameter, 0.3)",
        "build": "self.model = model",
        "before": "with torch.no_grad():\n    aim = self.teacher[0](points)\nlogits = logits + 0.1 * aim",
    },
    {
        "init": "self.slow = None",
        "held": "self.model = model",
        "on_step": "now = self.model.last.bias.detach()\n"
        "self.slow = now.clone() if self.slow is None else self.slow.lerp(now, 0.3)",
        "before": "logits = logits + self.slow if self.slow is not None else logits",
    },
)

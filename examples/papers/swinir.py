"""Super-resolution by SwinIR: photographs twice as large, sharper than bicubic interpolation makes them.

Liang et al., "SwinIR", ICCVW 2021, small: residual groups of Swin blocks, then a pixel shuffle. The model adds details
to the bicubic image. The groups hand on the features of the first convolution, so the paper's long skip needs no layer,
and no norm comes last, which would hide contrasts. The photographs are those that scikit-image and scikit-learn ship
(``pip install -c constraints.txt scikit-image``); four of them are held out. Only their brightness is used, as by the
paper's PSNR. The study beside it is ``swinir.yaml``.
"""

from functools import cache

import torch
from torch import nn
from torch.nn import functional

from scamp import Chain, Split, Workload
from workloads.models.swin import COLUMNS, ROWS, WindowBlock

TRAIN = (
    *("astronaut", "brick", "camera", "grass", "gravel", "immunohistochemistry", "retina", "rocket"),
    *("stereo_motorcycle", "china.jpg"),
)
HELD_OUT = ("chelsea", "coffee", "coins", "flower.jpg")
NUM_TRAIN = 4096
WINDOW, FACTOR = 8, 2
EVAL_SIDE = 240
"""Pixels a side of the square in the middle of each held-out image."""


class SwinIr(Workload):
    """Metrics: ``psnr`` (dB, the mean over the held-out images), ``bicubic_psnr`` and ``gain_db``, their difference.

    Parameters, with defaults: ``groups`` 2 (each with two Swin blocks and a convolution), ``width`` 32, ``heads`` 4,
    ``patch`` 24 (side of the small images, 8 or 24), ``lr`` 2e-3 (the peak of a cycle), ``batch`` 16.
    """

    default_batch = 16
    num_train = NUM_TRAIN

    def __init__(self, params):
        super().__init__(params)
        self.groups, self.width = params.get("groups", 2), params.get("width", 32)
        self.heads, self.patch = params.get("heads", 4), params.get("patch", 24)
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        if self.patch not in (8, 24):
            raise ValueError(f"patch must be 8 or 24, got {self.patch}")

    @property
    def num_eval(self):
        return len(HELD_OUT) * (EVAL_SIDE // (FACTOR * self.patch)) ** 2

    def build_model(self):
        return Net(self.groups, self.width, self.heads, self.patch)

    def train_batch(self, indices):
        """Small patches [n, patch, patch], their bicubic enlargements and the true ones [n, 2 patch, 2 patch]."""
        return self._batch([_train_place(index, self.patch) for index in indices.tolist()])

    def eval_batch(self, indices):
        """As ``train_batch``, and the number of each patch's image, shape [n]."""
        per_image = self.num_eval // len(HELD_OUT)
        places = [_held_out_place(*divmod(index, per_image), self.patch) for index in indices.tolist()]
        return *self._batch(places), indices // per_image

    def loss(self, model, batch):
        small, bicubic, true = batch
        return (bicubic + model(small) - true).abs().mean()

    def evaluate(self, model, batch):
        small, bicubic, true, image = batch
        made = (bicubic + model(small)).clamp(0, 1)
        errors = [(each - true).square().mean((1, 2)) for each in (made, bicubic)]
        return {}, (*errors, image)

    def summarize(self, outputs):
        *errors, image = outputs
        per_image = [torch.stack([error[image == each].mean() for each in image.unique()]) for error in errors]
        psnr, bicubic = (-10 * float(error.log10().mean()) for error in per_image)
        return {"psnr": psnr, "bicubic_psnr": bicubic, "gain_db": psnr - bicubic}

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.params.get("lr", 2e-3), weight_decay=0.0)

    def scheduler(self, optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, self.params.get("lr", 2e-3), max(steps, 2))

    def _batch(self, places):
        parts = []
        for (large, bicubic, small), row, column, turns in places:
            rows, columns = (slice(start, start + self.patch) for start in (row, column))
            wide = [slice(FACTOR * each.start, FACTOR * each.stop) for each in (rows, columns)]
            cut = small[rows, columns], bicubic[wide[0], wide[1]], large[wide[0], wide[1]]
            parts.append([each.rot90(turns) if turns < 4 else each.rot90(turns).T for each in cut])
        return tuple(torch.stack(each) for each in zip(*parts, strict=True))


class Net(Chain):
    """Small images [n, side, side] → what their bicubic enlargements lack [n, 2 side, 2 side]."""

    enters, leaves = ("first", "positions"), ("last",)

    def __init__(self, groups, width, heads, side):
        super().__init__()
        self.width, self.side = width, side
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.positions = nn.Parameter(torch.randn(width, WINDOW, WINDOW) * 0.02)
        self.blocks = nn.ModuleList(ResidualGroup(width, heads, side, (4 * groups) ** -0.5) for _ in range(groups))
        self.last = nn.Conv2d(width, FACTOR**2, 3, padding=1)
        nn.init.normal_(self.last.weight, std=1e-3)
        nn.init.zeros_(self.last.bias)

    def enter(self, images):
        count = self.side // WINDOW
        x = self.first(images[:, None] - 0.5) + self.positions.repeat(1, count, count)
        return x.flatten(2).transpose(1, 2)

    def leave(self, x):
        x = x.transpose(1, 2).unflatten(2, (self.side, self.side))
        return functional.pixel_shuffle(self.last(x), FACTOR)[:, 0]

    def hidden_shape(self, num_samples):
        return num_samples, self.side**2, self.width


class ResidualGroup(nn.Module):
    """Two Swin blocks, the second with shifted windows, and a convolution; its input is added to their result."""

    def __init__(self, width, heads, side, scale):
        super().__init__()
        inside = [[f"layers.{number}.{name}" for number in (0, 1) for name in names] for names in (COLUMNS, ROWS)]
        self.split = Split(*map(tuple, inside), norms=(), most_parts=heads)
        self.side = side
        self.layers = nn.Sequential(*(WindowBlock(width, heads, side, WINDOW, bool(i), scale) for i in (0, 1)))
        self.convolve = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        y = self.layers(x).transpose(1, 2).unflatten(2, (self.side, self.side))
        return x + self.convolve(y).flatten(2).transpose(1, 2)


def _train_place(index, patch):
    """A patch of a training image that depends on ``index`` alone, and which of the eight symmetries turns it."""
    numbers = torch.Generator().manual_seed(index)
    images = _images(TRAIN)
    image = images[index % len(images)]
    row, column = (int(torch.randint(size - patch + 1, (), generator=numbers)) for size in image[2].shape)
    return image, row, column, int(torch.randint(8, (), generator=numbers))


def _held_out_place(image, number, patch):
    """Patch ``number`` of the square in the middle of a held-out image."""
    found = _images(HELD_OUT)[image]
    down, right = divmod(number, EVAL_SIDE // FACTOR // patch)
    top, left = ((size - EVAL_SIDE // FACTOR) // 2 for size in found[2].shape)
    return found, top + down * patch, left + right * patch, 0


@cache
def _images(names):
    """For each image its brightness from 0 to 1, the bicubic enlargement of its half, and the half."""
    from skimage import data
    from skimage.color import rgb2gray
    from sklearn.datasets import load_sample_image

    found = []
    for name in names:
        image = load_sample_image(name) if "." in name else getattr(data, name)()
        image = image[0] if isinstance(image, tuple) else image  # a pair of eyes: the left one
        gray = rgb2gray(image) if image.ndim == 3 else image / 255
        large = torch.from_numpy(gray).float()
        large = large[: large.shape[0] // FACTOR * FACTOR, : large.shape[1] // FACTOR * FACTOR]
        small = _resized(large, 1 / FACTOR).mul(255).round().div(255).clamp(0, 1)  # 8 bits, as a file would have
        found.append((large, _resized(small, FACTOR).clamp(0, 1), small))
    return found


def _resized(image, factor):
    return functional.interpolate(image[None, None], scale_factor=factor, mode="bicubic", antialias=factor < 1)[0, 0]

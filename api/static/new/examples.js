// Studies to begin with, and a workload for those who have none yet.

export const BUILT_IN = `name: first study
workload: vit_digits   # a built-in model, which reads handwritten digits
objective: {metric: accuracy, direction: maximize}
space:
  depth: {choice: [2, 4]}
  lr: {low: 3.0e-4, high: 3.0e-3, log: true}
budget:
  trials: 8
  steps: 60
stopping: {rule: asha}   # stop poor trials early, as without this line; none: train all to the end
`;

export const OWN = `name: my model
workload: mine.py:Mine   # the class Mine in your file mine.py
objective: {metric: accuracy, direction: maximize}
space:
  width: {choice: [64, 256]}
  lr: {low: 1.0e-4, high: 1.0e-2, log: true}
budget:
  trials: 8
  steps: 100
  # seconds: 3600        # end after an hour
search:
  sampler: tpe           # also random, cmaes, grid, …
stopping:
  rule: asha             # stop poor trials early; none: train all to the end
`;

export const OWN_CODE = `import torch
from sklearn.datasets import load_digits
from torch import nn

from scamp import from_function

pictures, digits = load_digits(return_X_y=True)
inputs = torch.tensor(pictures / 16, dtype=torch.float32)
labels = torch.tensor(digits)


def build(width):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def accuracy(logits, labels):
    return (logits.argmax(-1) == labels).float()


Mine = from_function(
    build,
    train=(inputs[:1400], labels[:1400]),
    held_out=(inputs[1400:], labels[1400:]),
    loss=nn.functional.cross_entropy,
    metrics={"accuracy": accuracy},
)
`;

"""A variational autoencoder of images, trained with SGD."""

import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self, channels, latent):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, channels, 4, 2, 1),
            nn.SiLU(),
            nn.Conv2d(channels, 2 * channels, 4, 2, 1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(2 * channels * 49, 2 * latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, 2 * channels * 49),
            nn.Unflatten(1, (2 * channels, 7, 7)),
            nn.ConvTranspose2d(2 * channels, channels, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(channels, 1, 4, 2, 1),
        )

    def forward(self, images):
        mean, variance = self.encoder(images).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (variance / 2).exp()
        return self.decoder(code), mean, variance


def make(channels=32, latent=16):
    def inputs(batch):
        return torch.rand(batch, 1, 28, 28)

    def loss(model, images):
        reconstruction, mean, variance = model(images)
        distance = functional.binary_cross_entropy_with_logits(reconstruction, images, reduction="sum")
        return (distance - 0.5 * (1 + variance - mean**2 - variance.exp()).sum()) / len(images)

    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)

    return Net(channels, latent), inputs, loss, optimizer

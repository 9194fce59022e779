"""A small DCGAN that draws handwritten digits.

python before.py --epochs 50 --latent 32
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scamp import Parts, Phase, Workload

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=50)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr-g", type=float, default=1e-3)
parser.add_argument("--lr-d", type=float, default=5e-4)
parser.add_argument("--beta1", type=float, default=0.5)
parser.add_argument("--latent", type=int, default=32)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--smooth", type=float, default=0.9)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output", default="gan_samples")


class Generator(nn.Module):
    def __init__(self, latent, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(latent, 4 * width, 2, bias=False),
            nn.GroupNorm(4, 4 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1, bias=False),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(z[:, :, None, None])


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
            nn.GroupNorm(4, 2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 2),
        )

    def forward(self, x):
        return self.net(x).flatten()


def init_weights(module):
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)


def load_data():
    images = torch.from_numpy(load_digits().images).float() / 8 - 1
    images = images[:, None]
    return images[:1437], images[1437:]


def nearest_distance(fake, real):
    """Mean distance of each drawn image to the nearest real one, and of each real one to the nearest drawn."""
    distances = torch.cdist(fake.flatten(1), real.flatten(1))
    return distances.min(1).values.mean().item(), distances.min(0).values.mean().item()


class Gan(Workload):
    def build_model(self):
        latent, width = self.params["latent"], self.params["width"]
        return Parts(G=Generator(latent, width), D=Discriminator(width)).apply(init_weights)

    def dataset(self, split):
        images = load_data()[split == "eval"]
        return TensorDataset(images, torch.randn(len(images), self.params["latent"]))

    def augment(self, sample, generator):
        return sample[0], torch.randn(self.params["latent"], generator=generator)

    def phases(self):
        return [Phase("D", self.loss_d, self.adam("D", "lr_d")), Phase("G", self.loss_g, self.adam("G", "lr_g"))]

    def adam(self, part, lr):
        return lambda model: torch.optim.Adam(model[part].parameters(), self.params[lr], betas=(0.5, 0.999))

    def loss_d(self, model, batch):
        fake = model("G", batch[1]).detach()
        return self.bce(model("D", batch[0]), self.params["smooth"]) + self.bce(model("D", fake), 0.0)

    def loss_g(self, model, batch):
        return self.bce(model("D", model("G", batch[1])), 1.0)

    def bce(self, out, target):
        return nn.functional.binary_cross_entropy_with_logits(out, torch.full_like(out, target))

    def evaluate(self, model, batch):
        return {}, (model("G", batch[1]), batch[0])

    def summarize(self, outputs):
        return dict(zip(["fidelity", "coverage"], nearest_distance(*outputs), strict=True))


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.makedirs(args.output, exist_ok=True)

    train_images, val_images = load_data()
    val_images = val_images.to(device)
    loader = DataLoader(TensorDataset(train_images), args.batch_size, shuffle=True, drop_last=True)

    netG = Generator(args.latent, args.width).to(device)
    netD = Discriminator(args.width).to(device)
    netG.apply(init_weights)
    netD.apply(init_weights)
    optG = torch.optim.Adam(netG.parameters(), lr=args.lr_g, betas=(args.beta1, 0.999))
    optD = torch.optim.Adam(netD.parameters(), lr=args.lr_d, betas=(args.beta1, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(len(val_images), args.latent, device=device)

    for epoch in range(args.epochs):
        for (real,) in loader:
            real = real.to(device)

            # discriminator: real images, then drawn ones
            noise = torch.randn(len(real), args.latent, device=device)
            fake = netG(noise)
            out_real = netD(real)
            out_fake = netD(fake.detach())
            loss_real = criterion(out_real, torch.full_like(out_real, args.smooth))
            loss_fake = criterion(out_fake, torch.zeros_like(out_fake))
            lossD = loss_real + loss_fake
            optD.zero_grad()
            lossD.backward()
            optD.step()

            # generator: make the discriminator believe
            out = netD(fake)
            lossG = criterion(out, torch.ones_like(out))
            optG.zero_grad()
            lossG.backward()
            optG.step()

        netG.eval()
        with torch.no_grad():
            fake = netG(fixed_noise)
        netG.train()
        fidelity, coverage = nearest_distance(fake, val_images)
        print(
            f"epoch {epoch}: D {lossD.item():.3f} G {lossG.item():.3f} fidelity {fidelity:.3f} coverage {coverage:.3f}"
        )
        torch.save(fake.cpu(), f"{args.output}/{epoch:03d}.pt")
    torch.save({"G": netG.state_dict(), "D": netD.state_dict()}, f"{args.output}/gan.pt")


if __name__ == "__main__":
    main()

"""Autoencoders, generators, discriminators, embeddings, and networks for sound and sequences."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        return self.decoder(self.encoder(x.flatten(1))).view(shape)


class ConvAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 1),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 3, 3, stride=2, padding=1, output_padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class VAEEncoder(nn.Module):
    def __init__(self, latent: int = 8) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 24, 4, 2, 1),
            nn.BatchNorm2d(24),
            nn.LeakyReLU(0.2),
        )
        self.fc_mu = nn.Linear(24 * 16, latent)
        self.fc_var = nn.Linear(24 * 16, latent)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.flatten(self.convs(x), start_dim=1)
        return self.fc_mu(h), self.fc_var(h).clamp(-10, 10)


def make_dcgan_generator(latent: int = 12, width: int = 8) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(latent, width * 2, 4, 1, 0, bias=False),
        nn.BatchNorm2d(width * 2),
        nn.ReLU(True),
        nn.ConvTranspose2d(width * 2, width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(True),
        nn.ConvTranspose2d(width, width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(True),
        nn.Conv2d(width, width, 3, 1, 1),
        nn.ReLU(True),
        nn.Conv2d(width, width, 3, 1, 1),
        nn.ReLU(True),
        nn.Conv2d(width, 3, 3, 1, 1),
        nn.Tanh(),
    )


class Discriminator(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, width * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width * 2, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x).view(-1, 1).sigmoid()


class StyleTransfer(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.ReflectionPad2d(4), nn.Conv2d(3, width, 9), nn.InstanceNorm2d(width, affine=True), nn.ReLU(),
            nn.ReflectionPad2d(1), nn.Conv2d(width, 2 * width, 3, 2), nn.InstanceNorm2d(2 * width, affine=True),
            nn.ReLU(),
        )  # fmt: skip
        self.res1 = nn.Conv2d(2 * width, 2 * width, 3, padding=1, padding_mode="reflect")
        self.norm = nn.InstanceNorm2d(2 * width, affine=True)
        self.res2 = nn.Conv2d(2 * width, 2 * width, 3, padding=1, padding_mode="replicate")
        self.out = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        x = x + self.res2(F.relu(self.norm(self.res1(x))))
        x = F.interpolate(x, scale_factor=2)
        return self.out(x)


class CircularNet(nn.Module):
    """Network for panoramas: circular padding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular")
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.conv1(x))
        x = F.pad(x, (1, 1, 1, 1), mode="circular")
        x = F.elu(self.conv2(x))
        return self.fc(x.mean(dim=(-2, -1)))


class SiameseEmbedding(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 5),
            nn.PReLU(),
            nn.MaxPool2d(2, stride=2),
            nn.Conv2d(8, 16, 3),
            nn.PReLU(),
            nn.MaxPool2d(2, 2),
        )
        self.fc = nn.Sequential(nn.Linear(16 * 5 * 5, 32), nn.PReLU(), nn.Linear(32, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.fc(x.view(x.size()[0], -1))
        return F.normalize(x, p=2, dim=1)


class SpectrogramNet(nn.Module):
    def __init__(self, num_classes: int = 12) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, (3, 9), stride=(1, 2), padding=(1, 4))
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 5, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(torch.relu(self.bn2(self.conv2(x))), (4, 2))
        x = x.mean(3)
        return F.log_softmax(self.fc(x.flatten(1)), dim=-1)


class KeywordSpotter(nn.Module):
    """Depthwise separable network on cepstral coefficients."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, width, (10, 4), (2, 2), (5, 1)), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.ModuleList()
        for _ in range(2):
            self.blocks.append(
                nn.Sequential(
                    nn.Conv2d(width, width, 3, padding=1, groups=width), nn.BatchNorm2d(width), nn.ReLU(),
                    nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU(),
                )
            )  # fmt: skip
        self.fc = nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(torch.mean(x, dim=(2, 3)))


class WaveNet1d(nn.Module):
    """Convolutions over samples (n, 1, length)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, width, 8, stride=4)
        self.bn1 = nn.BatchNorm1d(width)
        self.conv2 = nn.Conv1d(width, width, 3)
        self.fc1, self.fc2, self.fc3 = nn.Linear(width, 32), nn.Linear(32, 24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool1d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.conv2(x))
        x = F.avg_pool1d(x, x.shape[-1]).squeeze(-1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class SequenceCNN(nn.Module):
    """Text classifier on embedded tokens (n, 1, tokens, dimension): parallel windows, max over time."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(1, 8, (k, dim)) for k in (2, 3, 4)])
        self.dropout = nn.Dropout(0.5)
        self.hidden = nn.Linear(24, 16)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        maps = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        pooled = [m.max(dim=2).values for m in maps]
        x = self.dropout(torch.cat(pooled, 1))
        return self.fc(F.relu(self.hidden(x)))


GENERATIVE = {
    "autoencoder": (Autoencoder, (1, 8, 8)),
    "autoencoder_convolutional": (ConvAutoencoder, (3, 16, 16)),
    "vae_encoder": (VAEEncoder, (3, 16, 16)),
    "dcgan_generator": (make_dcgan_generator, (12, 1, 1)),
    "dcgan_discriminator": (Discriminator, (3, 16, 16)),
    "style_transfer": (StyleTransfer, (3, 16, 16)),
    "circular_padding": (CircularNet, (3, 12, 12)),
    "siamese_embedding": (SiameseEmbedding, (1, 28, 28)),
    "spectrogram": (SpectrogramNet, (1, 20, 16)),
    "keyword_spotter": (KeywordSpotter, (1, 24, 10)),
    "audio_conv1d": (WaveNet1d, (1, 128)),
    "sequence_cnn": (SequenceCNN, (1, 12, 16)),
}

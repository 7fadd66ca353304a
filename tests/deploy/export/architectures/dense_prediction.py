"""Networks with maps as outputs: segmentation, detection, super-resolution."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class DoubleConv(nn.Sequential):
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    def __init__(self, cin: int, cout: int, mode: str) -> None:
        super().__init__()
        self.mode = mode
        if mode == "transposed":
            self.up = nn.ConvTranspose2d(cin, cout, kernel_size=2, stride=2)
        elif mode == "pixelshuffle":
            self.up = nn.Sequential(nn.Conv2d(cin, cout * 4, 1), nn.PixelShuffle(2))
        elif mode == "bilinear":
            self.up = nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(cin, cout, 1)
            )
        else:
            self.up = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv = DoubleConv(2 * cout, cout)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        if self.mode == "nearest":
            x1 = F.interpolate(x1, size=x2.shape[-2:], mode="nearest")
        x1 = self.up(x1)
        diff_y = x2.size()[2] - x1.size()[2]
        diff_x = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diff_x // 2, diff_x - diff_x // 2, diff_y // 2, diff_y - diff_y // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, mode: str, num_classes: int = 3) -> None:
        super().__init__()
        self.inc = DoubleConv(3, 8)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(8, 16))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(16, 24))
        self.up1 = Up(24, 16, mode)
        self.up2 = Up(16, 8, mode)
        self.outc = nn.Conv2d(8, num_classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        return self.outc(self.up2(self.up1(x3, x2), x1))


class Backbone(nn.Module):
    """Returns feature maps of three sizes."""

    def __init__(self, widths: tuple[int, int, int] = (16, 24, 32)) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.stages = nn.ModuleList()
        cin = 8
        for width in widths:
            self.stages.append(
                nn.Sequential(nn.Conv2d(cin, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            )
            cin = width

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class FPN(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.inner = nn.ModuleList([nn.Conv2d(c, width, 1) for c in (16, 24, 32)])
        self.outer = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(3)])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.backbone(x)
        last = self.inner[-1](features[-1])
        results = [self.outer[-1](last)]
        for i in range(len(features) - 2, -1, -1):
            lateral = self.inner[i](features[i])
            last = lateral + F.interpolate(last, size=lateral.shape[-2:], mode="nearest")
            results.insert(0, self.outer[i](last))
        return {f"p{i}": level for i, level in enumerate(results)}


class SSD(nn.Module):
    def __init__(self, num_classes: int = 4, num_anchors: int = 2) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.backbone = Backbone()
        self.cls = nn.ModuleList([nn.Conv2d(c, num_anchors * num_classes, 3, padding=1) for c in (16, 24, 32)])
        self.box = nn.ModuleList([nn.Conv2d(c, num_anchors * 4, 3, padding=1) for c in (16, 24, 32)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, boxes = [], []
        for feature, cls, box in zip(self.backbone(x), self.cls, self.box, strict=True):
            scores.append(cls(feature).permute(0, 2, 3, 1).reshape(x.size(0), -1, self.num_classes))
            boxes.append(box(feature).permute(0, 2, 3, 1).reshape(x.size(0), -1, 4))
        return torch.cat(scores, dim=1), torch.cat(boxes, dim=1)


class YOLO(nn.Module):
    def __init__(self, num_outputs: int = 9) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.reduce = nn.Sequential(nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.1))
        self.upsample = nn.Upsample(scale_factor=2)
        self.merge = nn.Sequential(nn.Conv2d(40, 24, 3, padding=1), nn.BatchNorm2d(24), nn.LeakyReLU(0.1))
        self.head_large = nn.Conv2d(16, num_outputs, 1)
        self.head_small = nn.Conv2d(24, num_outputs, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        _, middle, deep = self.backbone(x)
        deep = self.reduce(deep)
        merged = self.merge(torch.cat((self.upsample(deep), middle), 1))
        return [self.head_small(merged), self.head_large(deep)]


class CenterNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.deconv = nn.Sequential(
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.heads = nn.ModuleDict({name: nn.Conv2d(16, c, 3, padding=1) for name, c in (("heat", 3), ("size", 2))})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.deconv(self.backbone(x)[-1])
        return {name: torch.sigmoid(head(x)) if name == "heat" else head(x) for name, head in self.heads.items()}


class FCN(nn.Module):
    def __init__(self, num_classes: int = 4) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.score = nn.ModuleList([nn.Conv2d(c, num_classes, 1) for c in (16, 24, 32)])

    def forward(self, x: Tensor) -> Tensor:
        f1, f2, f3 = self.backbone(x)
        y = F.interpolate(self.score[2](f3), scale_factor=2, mode="bilinear", align_corners=False) + self.score[1](f2)
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False) + self.score[0](f1)
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class ASPP(nn.Module):
    def __init__(self, cin: int, cout: int, rates: tuple[int, ...] = (1, 2, 3)) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(cin, cout, 3, padding=r, dilation=r, bias=False), nn.BatchNorm2d(cout), nn.ReLU())
            for r in rates
        )
        self.image_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(cin, cout, 1), nn.ReLU())
        self.project = nn.Conv2d(cout * (len(rates) + 1), cout, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs = [branch(x) for branch in self.branches]
        pooled = F.interpolate(self.image_pool(x), size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.project(torch.cat([*outputs, pooled], dim=1))


class DeepLab(nn.Module):
    def __init__(self, num_classes: int = 4) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.aspp = ASPP(32, 16)
        self.low_level = nn.Conv2d(16, 8, 1)
        self.classifier = nn.Sequential(nn.Conv2d(24, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, num_classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        low, _, high = self.backbone(x)
        high = F.interpolate(self.aspp(high), size=low.shape[2:], mode="bilinear", align_corners=False)
        y = self.classifier(torch.cat((high, self.low_level(low)), dim=1))
        return F.interpolate(y, scale_factor=2, mode="nearest")


class SegNet(nn.Module):
    def __init__(self, num_classes: int = 4) -> None:
        super().__init__()
        self.enc1, self.enc2 = DoubleConv(3, 8), DoubleConv(8, 16)
        self.pool = nn.MaxPool2d(2, 2, return_indices=True)
        self.unpool = nn.MaxUnpool2d(2, 2)
        self.dec2, self.dec1 = DoubleConv(16, 8), nn.Conv2d(8, num_classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x, indices1 = self.pool(self.enc1(x))
        x, indices2 = self.pool(self.enc2(x))
        x = self.dec2(self.unpool(x, indices2))
        return self.dec1(self.unpool(x, indices1))


class AttentionGate(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.w_g = nn.Conv2d(channels, channels // 2, 1)
        self.w_x = nn.Conv2d(channels, channels // 2, 1)
        self.psi = nn.Sequential(nn.Conv2d(channels // 2, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())

    def forward(self, g: Tensor, x: Tensor) -> Tensor:
        return x * self.psi(F.relu(self.w_g(g) + self.w_x(x)))


class AttentionUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mid = DoubleConv(3, 8), DoubleConv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.gate = AttentionGate(8)
        self.dec = DoubleConv(16, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.enc(x)
        y = self.up(self.mid(F.max_pool2d(skip, 2)))
        y = self.dec(torch.cat([y, self.gate(y, skip)], dim=1))
        return self.out(y).sigmoid()


class LinkNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.dec3 = nn.ConvTranspose2d(32, 24, 3, stride=2, padding=1, output_padding=1)
        self.dec2 = nn.ConvTranspose2d(24, 16, 3, stride=2, padding=1, output_padding=1)
        self.dec1 = nn.ConvTranspose2d(16, 4, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        e1, e2, e3 = self.backbone(x)
        d2 = torch.relu(self.dec3(e3)) + e2
        d1 = torch.relu(self.dec2(d2)) + e1
        return torch.softmax(self.dec1(d1), dim=1)


class ESPCN(nn.Module):
    def __init__(self, upscale: int = 2) -> None:
        super().__init__()
        self.feature_maps = nn.Sequential(nn.Conv2d(1, 16, 5, 1, 2), nn.Tanh(), nn.Conv2d(16, 16, 3, 1, 1), nn.Tanh())
        self.sub_pixel = nn.Sequential(nn.Conv2d(16, upscale**2, 3, 1, 1), nn.PixelShuffle(upscale))

    def forward(self, x: Tensor) -> Tensor:
        x = self.sub_pixel(self.feature_maps(x))
        return torch.clamp_(x, 0.0, 1.0)


class EDSR(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(2)
        )
        self.tail = nn.Sequential(
            nn.Conv2d(width, width * 4, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 - 1
        features = self.head(x)
        res = features
        for block in self.body:
            res = block(res).mul(0.1) + res
        return self.tail(res + features)


DENSE_PREDICTION = {
    "unet_transposed": (lambda: UNet("transposed"), (3, 16, 16)),
    "unet_bilinear": (lambda: UNet("bilinear"), (3, 16, 16)),
    "unet_nearest": (lambda: UNet("nearest"), (3, 16, 16)),
    "unet_pixel_shuffle": (lambda: UNet("pixelshuffle"), (3, 16, 16)),
    "unet_attention": (AttentionUNet, (3, 16, 16)),
    "fpn": (FPN, (3, 32, 32)),
    "ssd": (SSD, (3, 32, 32)),
    "yolo": (YOLO, (3, 32, 32)),
    "centernet": (CenterNet, (3, 32, 32)),
    "fcn": (FCN, (3, 16, 16)),
    "deeplab": (DeepLab, (3, 32, 32)),
    "segnet": (SegNet, (3, 16, 16)),
    "linknet": (LinkNet, (3, 16, 16)),
    "espcn": (ESPCN, (1, 12, 12)),
    "edsr": (EDSR, (3, 12, 12)),
}

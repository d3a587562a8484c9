"""Small models of many kinds, for conversion and folding."""

import torch
from torch import nn


class Block(nn.Module):
    """A residual block with a shortcut."""

    def __init__(self, inputs, width, norms=2, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        if norms == 3:
            self.conv3 = nn.Conv2d(width, width, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(width)
        self.norms = norms
        self.shortcut = None
        if inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.norms == 3:
            y = self.bn3(self.conv3(torch.relu(y)))
        return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """A stem, blocks and a classifier; with three blocks a stage of two norms each, SW's Res-20."""

    def __init__(self, blocks=1, norms=2, widths=(8, 16)):
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        stages = []
        inputs = widths[0]
        for width in widths:
            for i in range(blocks):
                stages.append(Block(inputs, width, norms, 2 if width != widths[0] and i == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        x = self.blocks(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


class BatchNormAct2d(nn.BatchNorm2d):
    """As in timm: a norm with its activation."""

    def __init__(self, width):
        super().__init__(width)
        self.drop = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


@torch.no_grad()
def trained(model, seed=0):
    """As if trained: parameters and population statistics that are not the initial ones."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or "running_mean" in dict(module.named_buffers()):
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if tensor.is_floating_point() and tensor.ndim == 1:
                    values = torch.rand(tensor.shape, generator=generator)
                    tensor.copy_(values + (0.5 if name in ("weight", "running_var") else -0.5))
    return model


def whitened(model, layer="iternorm", where="all"):
    """Converted, run on some data in training, and put in eval mode."""
    import whitenorm

    model = whitenorm.convert_(model, layer, where).train()
    with torch.no_grad():
        for i in range(3):
            model(torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(i)))
    return model.eval()

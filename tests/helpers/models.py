"""Small models for conversion and folding, and what tests do with them."""

import copy

import torch
from torch import nn

import whitenorm


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
    """A stem, one stage of blocks per width, and a classifier; ``blocks=3`` with three widths is SW's Res-20."""

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
    """A norm with its activation, like timm's."""

    def __init__(self, width):
        super().__init__(width)
        self.drop = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class FrozenBatchNorm2d(nn.Module):
    """BatchNorm with buffers only, like torchvision's."""

    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((width,), value))

    def forward(self, x):
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


@torch.no_grad()
def randomize_norms(model, seed=0):
    """Give norms with population statistics random parameters and statistics, as after training; return the model."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or "running_mean" in dict(module.named_buffers()):
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if tensor.is_floating_point() and tensor.ndim == 1:
                    values = torch.rand(tensor.shape, generator=generator)
                    tensor.copy_(values + (0.5 if name in ("weight", "running_var") else -0.5))
    return model


@torch.no_grad()
def randomize_whitening(layer, seed=0):
    """Give a batch whitening layer random parameters and a random population, and return it in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in (layer.weight, layer.bias):
        if parameter is not None:
            parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    layer.running_mean.copy_(torch.randn(layer.num_features, generator=generator))
    size = layer.group_size
    root = torch.randn(layer.num_features // size, size, size, generator=generator)
    layer.set_population(layer.running_mean, root @ root.mT + torch.eye(size))
    return layer.eval()


def make_iternorm(*args, seed=0):
    """Make an IterNorm in eval mode with random parameters and a random population."""
    return randomize_whitening(whitenorm.IterNorm(*args), seed)


def make_pair(norm=None, channels=8):
    """Make a convolution with a norm behind it."""
    return nn.Sequential(nn.Conv2d(4, channels, 1), make_iternorm(channels) if norm is None else norm)


def convert_and_train(model, layer="iternorm", where="all"):
    """Convert a model, run some batches in training mode, and return it in eval mode."""
    model = whitenorm.convert_(model, layer, where).train()
    with torch.no_grad():
        for i in range(3):
            model(torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(i)))
    return model.eval()


def count_layers(model, kind=whitenorm.Whitening):
    return sum(isinstance(module, kind) for module in model.modules())


def snapshot(model):
    """Return the modules by name, and copies of all tensors."""
    return {name: id(module) for name, module in model.named_modules()}, copy.deepcopy(model.state_dict())


def assert_unchanged(model, before):
    modules, state = before
    assert {name: id(module) for name, module in model.named_modules()} == modules
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())

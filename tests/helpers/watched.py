"""A small model, its training, and what a monitor kept of it."""

import csv

import torch
from torch import nn

import whitenorm


def net(width=8):
    return nn.Sequential(nn.Linear(width, width), whitenorm.IterNorm(width), nn.ReLU(), nn.BatchNorm1d(width))


def train(model, steps, optimizer=None, size=32):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        loss = model(torch.randn(size, 8, generator=generator)).square().mean()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()


def hooks_of(model):
    return [hook for m in model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


class Kept(dict):
    """A destination that keeps all."""

    def __call__(self, step, rows):
        self[step] = rows

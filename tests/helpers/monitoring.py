"""A small model, its training, and readers of what a monitor wrote."""

import csv

import torch
from torch import nn

import whitenorm


def build_net(width=8):
    return nn.Sequential(nn.Linear(width, width), whitenorm.IterNorm(width), nn.ReLU(), nn.BatchNorm1d(width))


def train(model, steps, optimizer=None, batch_size=32):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        loss = model(torch.randn(batch_size, 8, generator=generator)).square().mean()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()


def list_hooks(model):
    return [hook for m in model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]


def read_rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


class RowsByStep(dict):
    """A monitor's destination that keeps all rows."""

    def __call__(self, step, rows):
        self[step] = rows

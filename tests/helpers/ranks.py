"""Checks that the processes of the distributed tests run, against a single process on the joined batch."""

import copy
import datetime
import time
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import whitenorm
from tests.helpers.cases import randomise
from whitenorm.losses import wmse
from whitenorm.ops import distributed

FIVE = ("bw", "iw", "bn", "in", "ln")
LAYERS = {
    "iternorm": lambda: whitenorm.IterNorm(6, 3),
    "dbn": lambda: whitenorm.DecorrelatedBatchNorm(6, 3),
    "cholesky": lambda: whitenorm.BatchWhitening(6, solver="cholesky", affine=False),
    "minimax": lambda: whitenorm.BatchWhitening(6, solver="minimax"),
    "bw-sigma": lambda: whitenorm.BatchWhitening(6, population="covariance", momentum=None),
    "sw": lambda: whitenorm.SwitchableWhitening(6, 3),
    "sw5": lambda: whitenorm.SwitchableWhitening(6, 3, FIVE),
    "sw-batch": lambda: whitenorm.SwitchableWhitening(6, 3, ("bw", "bn")),
}
SIZES = {2: [(5, 3), (6, 0), (1, 1)], 3: [(4, 1, 3), (0, 5, 2)], 4: [(3, 2, 0, 4), (1, 1, 1, 1)]}


needs_fsdp = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of this version of torch does not run on CPUs"
)


@contextmanager
def gloo(path, rank=0, world=1):
    """Initialize a process group."""
    # A collective that some rank leaves out shall fail, not hang.
    timeout = datetime.timedelta(seconds=90)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world, timeout=timeout)
    try:
        yield
    finally:
        # In torch 2.6 this waits for gloo's threads while it holds the interpreter's lock, which they may still need to
        # let go of the last tensors.
        time.sleep(0.1)
        dist.destroy_process_group()


def start(rank, world, path, function):
    """Run a function in a process of a group."""
    torch.set_num_threads(1)
    with gloo(path, rank, world):
        function(rank, world)


def close(actual, expected, what):
    error = (actual - expected).abs().max().item() if actual.numel() else 0.0
    scale = 1 + (expected.abs().max().item() if expected.numel() else 0.0)
    assert error <= 1e-8 * scale, f"{what}: error {error:.1e} at scale {scale:.1e}"


def all_reduce_sum(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def equal_to_the_joined_batch(rank, world):
    """Compare forward, gradients and buffers for batches of uneven sizes."""
    for name, make in LAYERS.items():
        for sizes in SIZES[world]:
            for shape in [(6, 4, 5)] + ([(6,)] if name in ("iternorm", "dbn", "sw-batch") else []):
                torch.manual_seed(0)
                alone = randomise(make().double())
                layer = whitenorm.synchronize_(copy.deepcopy(alone))
                x = torch.randn(sum(sizes), *shape, dtype=torch.float64) * 2 + 100
                grad = torch.randn_like(x)
                mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
                joined, local = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
                for _ in range(2):
                    expected, y = alone(joined), layer(local)
                expected.backward(grad)
                y.backward(grad[mine])
                what = f"{name} {sizes} {shape} on rank {rank}: "
                close(y, expected[mine], what + "output")
                close(local.grad, joined.grad[mine], what + "gradient of the input")
                for (key, parameter), other in zip(layer.named_parameters(), alone.parameters(), strict=True):
                    close(all_reduce_sum(parameter.grad), other.grad, what + f"gradient of {key}")
                for (key, buffer), other in zip(layer.named_buffers(), alone.buffers(), strict=True):
                    close(buffer, other, what + key)


def padding_of_all_ranks_counts_for_nothing(rank, world):
    torch.manual_seed(0)
    alone = randomise(whitenorm.IterNorm(6, 3).double())
    layer = whitenorm.synchronize_(copy.deepcopy(alone))
    x = torch.randn(2 * world, 6, 5, dtype=torch.float64)
    mask = torch.rand(2 * world, 5) < 0.6
    mine = slice(2 * rank, 2 * rank + 2)
    joined, local = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
    expected, y = alone(joined, mask=mask), layer(local, mask=mask[mine])
    (expected**3).sum().backward()
    (y**3).sum().backward()
    close(y, expected[mine], "output with padding")
    close(local.grad, joined.grad[mine], "gradient of the input with padding")
    close(layer.running_whitening, alone.running_whitening, "running matrix with padding")


def empty_on_all_ranks(rank, world):
    """Leave gradients at zero and statistics unchanged; later steps are not affected."""
    for name, make in LAYERS.items():
        torch.manual_seed(0)
        layer = whitenorm.synchronize_(randomise(make()))
        x = torch.randn(5, 6, 4, 5) + rank
        layer(x)
        before, without = copy.deepcopy(dict(layer.named_buffers())), copy.deepcopy(layer)
        empty = x[:0].clone().requires_grad_()
        y = layer(empty)
        y.sum().backward()
        assert y.shape == empty.grad.shape == (0, 6, 4, 5)
        for key, parameter in layer.named_parameters():
            assert torch.equal(parameter.grad, torch.zeros_like(parameter)), f"{name}: gradient of {key}"
        for key, buffer in layer.named_buffers():
            assert torch.equal(buffer, before[key]), f"{name}: {key}"
        layer(2 * x)
        without(2 * x)
        for buffer, other in zip(layer.buffers(), without.buffers(), strict=True):
            assert torch.equal(buffer, other), name


def one_collective_each_way(rank, world):
    calls = []
    original = dist.all_reduce

    def count_all_reduce(*arguments, **options):
        calls.append(options.get("group"))
        return original(*arguments, **options)

    dist.all_reduce = count_all_reduce
    for make in LAYERS.values():
        layer = whitenorm.synchronize_(make())
        x = torch.randn(4, 6, 3, 3, requires_grad=True)
        y = layer(x)
        assert len(calls) == 1
        y.sum().backward()
        assert len(calls) == 2
        layer.eval()(x).sum().backward()
        assert len(calls) == 2, "a collective in eval mode"
        calls.clear()
    dist.all_reduce = original


def offset_survives(rank, world):
    """Compare with a mean of a thousand standard deviations, in float32."""
    torch.manual_seed(0)
    x = torch.randn(world * 64, 4, dtype=torch.float64) @ torch.randn(4, 4, dtype=torch.float64)
    layer = whitenorm.synchronize_(whitenorm.BatchWhitening(4, population="covariance", momentum=1.0))
    layer((x + 1000)[rank * 64 : rank * 64 + 64].float())
    error = (layer.running_cov[0] - torch.cov(x.T, correction=0)).abs().max()
    assert error < 1e-3 * torch.cov(x.T).abs().max()


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3), whitenorm.IterNorm(6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3)]
    layers += [whitenorm.SwitchableWhitening(6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)]
    return nn.Sequential(*layers).double()


def inside(wrap, what, rank, world):
    """Compare gradients and buffers of a network inside a wrapper such as DDP."""
    torch.manual_seed(1)
    x, labels = torch.randn(3 * world, 3, 8, 8, dtype=torch.float64), torch.randint(4, (3 * world,))
    mine = slice(3 * rank, 3 * rank + 3)
    alone, wrapped = network(), wrap(whitenorm.synchronize_(network()), world)
    nn.functional.cross_entropy(alone(x), labels).backward()
    nn.functional.cross_entropy(wrapped(x[mine]), labels[mine]).backward()
    for parameter, other in zip(wrapped.parameters(), alone.parameters(), strict=True):
        grad = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        close(grad, other.grad, what)
    for buffer, other in zip(wrapped.buffers(), alone.buffers(), strict=True):
        close(buffer, other, what + ": buffers")


def inside_ddp(rank, world):
    inside(lambda model, _: DistributedDataParallel(model), "DDP", rank, world)


def inside_fsdp(rank, world):
    inside(shard, "FSDP2", rank, world)


def shard(model, world):
    mesh = init_device_mesh("cpu", (world,))
    for module in model:
        if list(module.parameters()):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def broadcast_buffers(rank, world):
    """Broadcast into a running covariance in eval mode, and by DDP before a forward: the matrix is recomputed."""
    layer = whitenorm.BatchWhitening(4, solver="zca", population="covariance", affine=False)
    layer(torch.randn(16, 4, generator=torch.Generator().manual_seed(rank)))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(9))

    def same_on_all_ranks(y):
        outputs = [torch.empty(3, 4) for _ in range(world)]
        dist.all_gather(outputs, y.detach())
        return all(torch.equal(output, outputs[0]) for output in outputs)

    assert not same_on_all_ranks(layer.eval()(x))
    for buffer in layer.buffers():
        dist.broadcast(buffer, 0)
    assert same_on_all_ranks(layer(x))

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), layer)).train()
    layer.eval()
    assert same_on_all_ranks(model(x))
    if rank == 0:
        layer.running_cov.mul_(9)
    assert same_on_all_ranks(model(x))


def subgroup_and_recalibration(rank, world):
    """Check that only the ranks of the group count, and that recalibration joins their data."""
    group = dist.new_group([0, 1])
    if rank > 1:
        return
    layer = whitenorm.synchronize_(nn.Sequential(whitenorm.IterNorm(4).double()), group)
    assert layer[0].process_group is group
    torch.manual_seed(0)
    data = torch.randn(2, 3, 8, 4, dtype=torch.float64) + torch.arange(2, dtype=torch.float64).view(2, 1, 1, 1)
    whitenorm.recalibrate_(layer, data[rank], progress=False)
    close(layer[0].running_mean, data.flatten(0, 2).mean(0), "recalibrated mean")
    # An empty batch on one rank adds nothing.
    uneven = [data[rank][0], data[rank][1] if rank == 0 else data[rank][1][:0]]
    whitenorm.recalibrate_(layer, uneven, progress=False)
    values = torch.cat([data[0, :2].flatten(0, 1), data[1, 0]])
    close(layer[0].running_mean, values.mean(0), "recalibrated mean with an empty batch")


class Unsynchronised(nn.SyncBatchNorm):
    """SyncBatchNorm whose forward runs on CPUs, too; recalibration needs only its inputs."""

    forward = nn.BatchNorm2d.forward


def recalibration_in_step(rank, world):
    """Check that uneven batches or an error on one rank raise on all ranks and change nothing."""
    model = whitenorm.synchronize_(nn.Sequential(whitenorm.IterNorm(4), whitenorm.BatchWhitening(4)))
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(8, 4)

    def fail_midway():
        yield x
        if rank == 1:
            raise OSError("disk")
        yield x

    class Unreadable:
        def __iter__(self):
            raise OSError("disk")

    cases = {
        "one without data": (ValueError, rf"got 0 on 1 of them, and more on {world - 1}\)", [] if rank == 1 else [x]),
        "one with more": (ValueError, rf"got 2 on {world - 1} of them, and more on 1\)", [x] * (3 if rank == 0 else 2)),
        "all without data": (ValueError, "at least one batch", []),
        "all empty": (ValueError, "got 2 batches, and fewer than 2 values", [x[:0]] * 2),
    }
    error, words = (OSError, "disk") if rank == 1 else (RuntimeError, r"to read batch 2 \(got an error on rank 1\)")
    cases["one that breaks off"] = error, words, fail_midway()
    error, words = (OSError, "disk") if rank == 1 else (RuntimeError, r"to read batch 1 \(got an error on rank 1\)")
    cases["one that does not begin"] = error, words, Unreadable() if rank == 1 else [x]
    for what, (error, words, batches) in cases.items():
        with pytest.raises(error, match=words):
            whitenorm.recalibrate_(model, batches, progress=False)
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key]), f"{what}: {key}"

    # A rank whose batches are all empty takes the others' statistics.
    data = torch.randn(world, 2, 8, 4, generator=torch.Generator().manual_seed(0))
    whitenorm.recalibrate_(model, data[rank] if rank == 0 else data[rank][:, :0], progress=False)
    assert torch.allclose(model[0].running_mean, data[0].flatten(0, 1).mean(0), atol=1e-6)

    norm = Unsynchronised(4)
    whitenorm.recalibrate_(norm, data[rank][..., None, None], progress=False)
    assert torch.allclose(norm.running_mean, data.flatten(0, 2).mean(0), atol=1e-6)
    assert torch.allclose(norm.running_var, data.flatten(0, 2).var(0), atol=1e-6)


class Failing(nn.Module):
    """Raise an error in the given call, counted from 1."""

    def __init__(self, call, error):
        super().__init__()
        self.left, self.error = call, error

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return x


def failing_hook(layer):
    def hook(*_):
        raise OSError("hook")

    layer.register_forward_hook(hook)


def recalibration_with_an_error_in_the_model(rank, world):
    """Check that an error on one rank raises on all and changes nothing; the group can still be used."""
    x = torch.randn(8, 4)

    def model(place=None, call=2, error=None):
        layers = [whitenorm.IterNorm(4), nn.Identity(), whitenorm.SwitchableWhitening(4), nn.Identity()]
        if rank == 1 and place is not None:
            layers.insert(place, Failing(call, error))
        return whitenorm.synchronize_(nn.Sequential(*layers))

    def with_hook():
        fail_midway = model()
        if rank == 1:
            failing_hook(fail_midway[2])
        return fail_midway

    whole, narrow = [x, x, x], [x, x, x[:, :3]]
    told = r"expected all ranks to process batch {} \(got an error on rank 1\)"
    cases = [
        (model(0, error=OSError("first")), whole, OSError, "first", 2),
        (model(2, error=OSError("between")), whole, OSError, "between", 2),
        (model(4, 3, OSError("last")), whole, OSError, "last", 3),
        (model(2, error=KeyboardInterrupt("stop")), whole, KeyboardInterrupt, "stop", 2),
        (with_hook(), whole, OSError, "hook", 1),
        (model(), narrow if rank == 1 else whole, ValueError, "expected 4 channels", 3),
        (model(), [x.long() if rank == 1 else x], ValueError, "floating-point", 1),
    ]
    for fail_midway, batches, error, words, number in cases:
        before = copy.deepcopy(fail_midway.state_dict())
        error, words = (error, words) if rank == 1 else (RuntimeError, told.format(number))
        start = time.monotonic()
        with pytest.raises(error, match=words):
            whitenorm.recalibrate_(fail_midway.eval(), batches, progress=False)
        assert time.monotonic() - start < 30
        for key, value in fail_midway.state_dict().items():
            assert torch.equal(value, before[key]), key
        assert not any(module.training for module in fail_midway.modules())
    data = torch.randn(world, 8, 4, generator=torch.Generator().manual_seed(0))
    recalibrated = whitenorm.recalibrate_(model(), [data[rank]], progress=False)
    assert torch.allclose(recalibrated[0].running_mean, data.flatten(0, 1).mean(0), atol=1e-6)


def recalibration_with_an_error_and_several_groups(rank, world):
    """Check that a rank forwards an error from one of its groups to the others."""
    pair = dist.new_group([0, 1])
    model = whitenorm.synchronize_(nn.Sequential(whitenorm.IterNorm(4), whitenorm.IterNorm(4)))
    model[0].process_group = pair if rank < 2 else None
    if rank == 1:
        model.insert(0, Failing(1, OSError("disk")))
    error, words = (OSError, "disk") if rank == 1 else (RuntimeError, r"got an error on ranks? .*1\]?\)")
    with pytest.raises(error, match=words):
        whitenorm.recalibrate_(model, torch.randn(2, 8, 4), progress=False)


def whiten_over_ranks(rank, world):
    """Compare functional.whiten with one process, for uneven and empty batches, and the loss of an entry of each."""
    cases = [("zca", 0, False), ("cholesky", 1, True), ("newton", 1, False)]
    for solver, correction, shrinkage in cases:
        for sizes in SIZES[world]:
            options = {"solver": solver, "correction": correction, "shrinkage": shrinkage, "eps": 0.01}
            torch.manual_seed(0)
            x = torch.randn(sum(sizes), 4, dtype=torch.float64) @ torch.randn(4, 4, dtype=torch.float64) + 100
            grad = torch.randn_like(x)
            mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
            joined, local = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
            expected = whitenorm.functional.whiten(joined, **options)
            y = whitenorm.functional.whiten(local, **options, process_group=dist.group.WORLD)
            expected.backward(grad)
            y.backward(grad[mine])
            close(y, expected[mine], f"whiten {solver} {sizes}")
            close(local.grad, joined.grad[mine], f"gradient of whiten {solver} {sizes}")


def in_order(num_permutations, size, device):
    """Stand in for random orders, so that one process and several divide a batch in the same way."""
    return torch.arange(size, device=device).expand(num_permutations, size)


def losses_over_ranks(rank, world):
    """Check that the mean loss and gradient over ranks are those of one process with the joint batch."""
    group = dist.group.WORLD
    makers = {
        "w-mse": lambda group: whitenorm.losses.WMSELoss(4 * world, 2, 0.01, process_group=group),
        "intl, features": lambda group: whitenorm.losses.INTLLoss("features", trace_weight=0.1, process_group=group),
        "intl, instances": lambda group: whitenorm.losses.INTLLoss(trace_weight=0.1, process_group=group),
    }
    wmse.draw_permutations = in_order
    for name, make in makers.items():
        torch.manual_seed(0)
        features = 12 * world if "instances" in name else 3
        # V, parts of the batch, ranks, images: a sub-batch has an equal part of every rank's batch.
        x = torch.randn(3, 2, world, 4, features, dtype=torch.float64) + 5
        joined, local = x.flatten(1, 3).requires_grad_(), x[:, :, rank].flatten(1, 2).requires_grad_()
        expected, loss = make(None)(joined), make(group)(local)
        expected.backward()
        loss.backward()
        close(all_reduce_sum(loss.detach()) / world, expected, name)
        grad = joined.grad.view(x.shape)[:, :, rank].flatten(1, 2)
        close(local.grad / world, grad, f"gradient of {name}")
        assert copy.deepcopy(make(group))._ranks.group is group
    with pytest.raises(ValueError, match=f"a multiple of the {world} ranks"):
        whitenorm.losses.WMSELoss(4 * world + 1, process_group=group)(torch.randn(2, 16, 2))
    selection_over_ranks(rank, world)


def selection_over_ranks(rank, world):
    """Check that ranks select the pairs of channels that one process with all images selects."""
    torch.manual_seed(0)
    x = torch.randn(2, 2 * world + 1, 6, 5, 5)
    x[1, :, :3] *= torch.randn(2 * world + 1, 3, 1, 1)
    x[1, :, 3:] += x[1, :, :3]
    alone = whitenorm.losses.InstanceSelectiveWhiteningLoss(6)
    loss = whitenorm.losses.InstanceSelectiveWhiteningLoss(6, process_group=dist.group.WORLD)
    alone.observe(*x)
    # The first rank has one image more.
    loss.observe(*x[:, 0 if rank == 0 else 2 * rank + 1 : 2 * rank + 3])
    assert torch.equal(loss.select_().mask, alone.select_().mask)


def domains_over_ranks(rank, world):
    """Check domains whose samples are spread unevenly over ranks, some of which have none, against one process."""
    domains = ([0, 0, 1, 0, 1, 1, 1] + [1, 0] * (world - 2))[: 2 * world + 1]
    starts = [0, 2, 5, *range(7, 2 * world + 2, 2)]
    mine = slice(starts[rank], starts[rank + 1])
    torch.manual_seed(0)
    alone = randomise(whitenorm.DomainWhitening(6, 2, 3).double())
    layer = whitenorm.synchronize_(copy.deepcopy(alone))
    x = torch.randn(len(domains), 6, 5, dtype=torch.float64) + 10
    joined, local = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
    expected, y = alone(joined, domain=domains), layer(local, domain=domains[mine])
    (expected**3).sum().backward()
    (y**3).sum().backward()
    close(y, expected[mine], "output of domains")
    close(local.grad, joined.grad[mine], "gradient of domains")
    for (key, buffer), other in zip(layer.named_buffers(), alone.buffers(), strict=True):
        close(buffer, other, f"{key} of domains")
    with whitenorm.use_domain(layer, 1):
        whitenorm.recalibrate_(layer, [x[mine]] if rank else [x[mine][:0]], progress=False)
    close(layer.running_mean[1], x[starts[1] :].mean((0, 2)), "recalibrated mean of a domain")
    close(layer.running_mean[0], alone.running_mean[0], "mean of another domain")


def concepts_over_ranks(rank, world):
    """Check that axes are aligned as by one process with all images, also if ranks have unequal numbers of them."""
    torch.manual_seed(0)
    alone = randomise(whitenorm.ConceptWhitening(6, 2).double())
    layer = whitenorm.synchronize_(copy.deepcopy(alone))
    images = torch.randn(2, 2 * world + 1, 6, 4, 4, dtype=torch.float64) + torch.randn(2, 1, 6, 1, 1)
    mine = slice(2 * rank + (rank > 0), 2 * rank + 3)
    for _ in range(3):
        whitenorm.align_concepts_(alone, images)
        whitenorm.align_concepts_(layer, images[:, mine])
    close(layer.rotation, alone.rotation, "rotation")


def sums_over_ranks_twice(rank, world):
    """Check second derivatives of a sum over ranks."""
    x = torch.tensor([1.0 + rank], dtype=torch.float64, requires_grad=True)
    total = distributed.sum_over_ranks(x, dist.group.WORLD)
    (grad,) = torch.autograd.grad(total**3, x, create_graph=True)
    everything = sum(1.0 + other for other in range(world))
    close(grad, torch.tensor([3 * world * everything**2]), "gradient of a sum")
    (second,) = torch.autograd.grad(grad, x)
    close(second, torch.tensor([6 * world**2 * everything]), "second derivative of a sum")


def all_checks(rank, world):
    whiten_over_ranks(rank, world)
    losses_over_ranks(rank, world)
    domains_over_ranks(rank, world)
    concepts_over_ranks(rank, world)
    sums_over_ranks_twice(rank, world)
    equal_to_the_joined_batch(rank, world)
    padding_of_all_ranks_counts_for_nothing(rank, world)
    empty_on_all_ranks(rank, world)
    one_collective_each_way(rank, world)
    offset_survives(rank, world)
    if world < 4:
        inside_ddp(rank, world)
        broadcast_buffers(rank, world)
        subgroup_and_recalibration(rank, world)
        recalibration_in_step(rank, world)
        recalibration_with_an_error_in_the_model(rank, world)
        recalibration_with_an_error_and_several_groups(rank, world)


def whitener_of_all_ranks(rank, world):
    """Compare with one process on all data, for different numbers of batches, one rank without any."""
    x = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 100
    alone = whitenorm.Whitener(6, 4).fit(x)
    for parts in ([x[:30].split(7), x[30:].split(10)], [[x], []]):
        batches = parts[rank] if rank < 2 else []
        whitener = whitenorm.Whitener(6, 4, process_group=dist.group.WORLD).fit(batches)
        assert whitener.n_samples_seen_ == 40
        close(whitener(x), alone(x), "fit")
    whitener = whitenorm.Whitener(6, 4, process_group=dist.group.WORLD)
    for start in (0, 20):
        whitener.partial_fit(x[start : start + 20] if rank == 0 else x[:0])
    close(whitener(x), alone(x), "partial_fit")
    assert copy.deepcopy(whitener).process_group is dist.group.WORLD

"""Style transfer: net, losses, data, training, and ``whitenorm-lab stylize``."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from whitenorm_lab.cli import main
from whitenorm_lab.nets import pretrained
from whitenorm_lab.tasks.style import COMMANDS
from whitenorm_lab.tasks.style.config import Style, SwStyle
from whitenorm_lab.tasks.style.features import Features, load_features
from whitenorm_lab.tasks.style.images import SquareCrops, read_image, to_pil, to_tensor
from whitenorm_lab.tasks.style.losses import PerceptualLoss, compute_gram
from whitenorm_lab.tasks.style.net import TransformerNet
from whitenorm_lab.tasks.style.stylize import Stylize, stylize
from whitenorm_lab.tasks.style.task import SHEET, StyleTransfer
from whitenorm_lab.training import fit, load
from whitenorm_lab.training.evaluation import Evaluate, evaluate


def write_image(path, width, height, seed=0, mode="RGB"):
    """Write an image of colored blocks."""
    rng = np.random.default_rng(seed)
    blocks = Image.fromarray(rng.integers(0, 256, (5, 4, 3), dtype=np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks.resize((width, height), Image.Resampling.NEAREST).convert(mode).save(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight content images of several shapes and modes, and a style."""
    path = tmp_path_factory.mktemp("style")
    modes = ["RGB", "L", "RGBA", "P"]
    for i in range(8):
        write_image(path / "content" / f"{i}.png", 40 + 5 * i, 60 - 3 * i, seed=i, mode=modes[i % 4])
    write_image(path / "style.jpg", 50, 40, seed=100)
    return path


@pytest.fixture(scope="module")
def options(folder):
    """Options of a small run, with features that need no trained network."""
    stages = [nn.Conv2d(3, 8, 3), nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(8, 8, 3))]
    torch.manual_seed(0)
    plain = Features(stages, 1, (0.5,) * 3, (0.5,) * 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whitenorm_lab.tasks.style.task.load_features", lambda vgg: plain)
        yield {
            **{"dataset": f"folder:{folder / 'content'}", "style": folder / "style.jpg", "test_images": 2, "crop": 32},
            **{"image_size": 36, "style_size": 32, "width": 4, "blocks": 1, "batch_size": 2, "workers": 0},
            "quiet": True,
        }


@pytest.fixture(scope="module")
def run(options, tmp_path_factory):
    """The folder of a run."""
    path = tmp_path_factory.mktemp("runs") / "run"
    fit(Style(**options, epochs=1, norm="sw", folder=path))
    return path


@pytest.mark.parametrize("size", [(16, 16), (17, 30), (41, 18)])
def test_net_takes_any_size(size):
    net = TransformerNet(4, 1).eval()
    images = torch.rand(2, 3, *size)
    painted = net(images)
    assert painted.shape == images.shape
    assert 0 <= painted.min() <= painted.max() <= 1


def test_net_is_that_of_the_recipe():
    """Width 32 and 5 blocks: 15 norms and the published code's parameters, less biases that norms make superfluous."""
    net = TransformerNet()
    assert sum(isinstance(module, nn.BatchNorm2d) for module in net.modules()) == 15
    # 1,679,235 in PyTorch's own example, which has biases before its norms.
    before = sum(module.num_features for module in net.modules() if isinstance(module, nn.BatchNorm2d))
    assert sum(parameter.numel() for parameter in net.parameters()) == 1_679_235 - before
    with pytest.raises(ValueError, match=r"at least 16×16 \(got 15×40\)"):
        net(torch.rand(1, 3, 15, 40))


def test_losses_are_the_formulas():
    torch.manual_seed(0)
    stages = [nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3, stride=2)]
    network = Features(stages, 1, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)).double()
    style, images, painted = (torch.rand(n, 3, 20, 24, dtype=torch.float64) for n in (1, 2, 2))
    losses = PerceptualLoss(network, style[0])(painted, images)

    def maps(x):
        x = (x - network.mean) / network.std
        return [stages[0](x), stages[1](stages[0](x))]

    of_style, of_images, of_painted = maps(style), maps(images), maps(painted)
    content = (of_painted[1] - of_images[1]).pow(2).mean((1, 2, 3)) / of_style[1].var(correction=0)
    torch.testing.assert_close(losses.content, content)
    grams = [
        [torch.einsum("nchw,ndhw->ncd", x, x) / x[0, 0].numel() for x in two]
        for two in zip(of_painted, of_style, strict=True)
    ]
    relative = [((one - other) ** 2).sum((1, 2)) / (other**2).sum() for one, other in grams]
    torch.testing.assert_close(losses.style, sum(relative) / 2)
    right, below = painted[..., 1:] - painted[..., :-1], painted[..., 1:, :] - painted[..., :-1, :]
    torch.testing.assert_close(losses.smooth, right.pow(2).mean((1, 2, 3)) + below.pow(2).mean((1, 2, 3)))


def test_gram_is_exact_under_autocast():
    x = torch.randn(1, 4, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compute_gram(x), compute_gram(x.double()).float())


def test_features_of_lite0_are_the_trained_net_without_strides():
    """With the strides restored, the stages give timm's maps."""
    images = torch.rand(2, 3, 64, 64)
    network = load_features()
    maps = network(images)
    assert [tuple(one.shape[1:]) for one in maps] == [(32, 64, 64), (16, 32, 32), (24, 16, 16), (40, 8, 8)]
    torch.testing.assert_close(network.compute_content_map(images), maps[3])
    assert not any(parameter.requires_grad for parameter in network.parameters())
    pools = [module for module in network.modules() if isinstance(module, nn.AvgPool2d)]
    for pool in pools:
        pool.kernel_size = pool.stride = 1
    network.stages[0][0].stride = (2, 2)
    for stage in network.stages[2:]:
        stage[0].conv_dw.stride = (2, 2)
    trained = pretrained.efficientnet_lite0(features_only=True, out_indices=(0, 1, 2)).eval()
    with torch.no_grad():
        for one, other in zip(network(images)[1:], trained(2 * images - 1), strict=True):
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_features_of_vgg(tmp_path):
    from torchvision.models import vgg16

    with torch.device("meta"):
        shapes = vgg16(init_weights=False).features.state_dict()
    # Expanded numbers, which keep the file small.
    weights = {f"features.{name}": torch.tensor(1e-3).expand(value.shape) for name, value in shapes.items()}
    path = tmp_path / "vgg16.pth"
    torch.save({**weights, "classifier.0.bias": torch.zeros(1)}, path)
    network = load_features(path)
    assert network.content == 1
    images = torch.rand(1, 3, 32, 32)
    maps = network(images)
    assert [tuple(one.shape[1:]) for one in maps] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    # Later layers do not overwrite the outputs of the ReLUs.
    assert all(one.min() >= 0 for one in maps)
    torch.testing.assert_close(network.compute_content_map(images), maps[1])
    del weights["features.28.bias"]
    torch.save(weights, path)
    with pytest.raises(ValueError, match=rf"28.bias of shape \(512,\) in the weights of {path} \(got none\)"):
        load_features(path)
    path.write_text("no weights")
    with pytest.raises(OSError, match=f"expected weights in {path} .got a file that cannot be read"):
        load_features(path)
    with pytest.raises(OSError, match=r"nowhere.pth .got no such file"):
        load_features(tmp_path / "nowhere.pth")


def test_square_crops(tmp_path):
    """The center in tests; in training a random place, at the right scale."""
    path = tmp_path / "wide.png"
    ramp = np.zeros((40, 400, 3), np.uint8)
    ramp[..., 0] = np.linspace(0, 255, 400).round()
    Image.fromarray(ramp).save(path)
    middle = SquareCrops([path], 20, 20, random=False)[0]
    assert middle.shape == (3, 20, 20)
    assert abs(float(middle[0].float().mean()) - 127.5) < 1
    random_crops = SquareCrops([path], 20, 10, random=True)
    torch.manual_seed(0)
    crops = [random_crops[0][0].float() for _ in range(20)]
    slopes = [float(crop[:, -1].mean() - crop[:, 0].mean()) for crop in crops]
    # 10 of 20 pixels of a height of 40: 20 of 400 columns, less one of the ten.
    assert all(abs(abs(slope) - 20 * 0.9 * 255 / 400) < 1.5 for slope in slopes)
    assert {slope > 0 for slope in slopes} == {True, False}
    assert len({float(crop.mean()) for crop in crops}) == 20


def test_images_of_all_modes(tmp_path):
    grey = np.linspace(0, 65535, 400).reshape(20, 20).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey16.png")
    expected = torch.from_numpy((grey >> 8).astype(np.uint8)).expand(3, 20, 20)
    assert torch.equal(to_tensor(read_image(tmp_path / "grey16.png")), expected)
    Image.new("RGBA", (20, 20), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert read_image(tmp_path / "clear.png").getpixel((0, 0)) == (255, 255, 255)
    turned = Image.new("RGB", (20, 30))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").size == (30, 20)


def test_bad_data_is_named(folder, options, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for changes, kind, message in [
        ({"dataset": f"folder:{empty}"}, OSError, f"expected images .* in {empty} .got none"),
        ({"dataset": f"folder:{tmp_path / 'none'}"}, OSError, f"got no {tmp_path / 'none'}"),
        ({"dataset": "imagenet"}, ValueError, "coco, coco128 or folder:PATH .got 'imagenet'"),
        ({"dataset": "coco128", "data": tmp_path}, OSError, f"got no {tmp_path / 'coco128' / 'images'}"),
        ({"style": None}, ValueError, "pass --style FILE"),
        ({"style": tmp_path / "none.jpg"}, OSError, "none.jpg .got no such file"),
        ({"test_images": 8}, ValueError, "got 8, of which 8 are held out"),
        ({"batch_size": 7}, ValueError, "batch_size up to the 6"),
    ]:
        with pytest.raises(kind, match=message):
            fit(Style(**{**options, **changes}))
    with pytest.raises(ValueError, match="image_size of at least the crop's 64"):
        Style(crop=64, image_size=40)


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_images_are_named(folder, options, tmp_path, workers):
    for name in "abcd":
        write_image(tmp_path / f"{name}.png", 40, 40)
    changed = {**options, "dataset": f"folder:{tmp_path}", "test": f"folder:{folder}", "workers": workers}
    cut = tmp_path / "cut.jpg"
    cut.write_bytes((folder / "style.jpg").read_bytes()[:400])
    with pytest.raises(OSError, match=f"^expected a complete image in {cut} .*download it again or remove it"):
        fit(Style(**{**changed, "batch_size": 5}))
    cut.unlink()
    small = write_image(tmp_path / "small.png", 40, 12)
    with pytest.raises(OSError, match=f"at least 16×16 pixels .got 40×12 in {small}"):
        fit(Style(**{**changed, "batch_size": 5}))


@pytest.mark.parametrize(
    "norm", ["sw", *[pytest.param(name, marks=pytest.mark.slow) for name in ("bn", "in", "iw", "none")]]
)
def test_learns_with_every_norm(options, norm):
    """The loss falls by a fifth within a few epochs."""
    outcome = fit(Style(**options, norm=norm, epochs=6, lr=0.01, recalibrate=0))
    losses = [epoch.train_loss for epoch in outcome.epochs]
    assert losses[-1] < 0.8 * losses[0]
    assert set(outcome.epochs[-1].tests["test"]) == {"loss", "content", "style"}


def test_resumes_with_the_same_bits(options, tmp_path):
    whole = fit(Style(**options, epochs=2, norm="sw", folder=tmp_path / "whole"))
    short = Style(**options, epochs=2, norm="sw", folder=tmp_path / "short", checkpoint_steps=1)

    from lightning.pytorch.callbacks import LambdaCallback

    def stop(trainer, *_):
        if trainer.global_step == 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(short, callbacks=[LambdaCallback(on_train_batch_start=stop)])
    again = fit(short)
    assert [epoch.scores() for epoch in again.epochs] == [epoch.scores() for epoch in whole.epochs]
    one, other = (load(tmp_path / name).state_dict() for name in ("whole", "short"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_run_has_a_sheet_and_is_evaluated(run, folder):
    with Image.open(run / SHEET) as sheet:
        # Two squares of 36, between gaps of 4, in two rows below the style of 45×36.
        assert sheet.size == (2 * 40 + 4, 3 * 40 + 4)
    numbers = evaluate(Evaluate(run))["test"]
    outcome = fit(dataclasses.replace(Style.from_dict(_config(run)), quiet=True))
    assert numbers == pytest.approx(outcome.epochs[-1].tests["test"], rel=1e-5)
    elsewhere = evaluate(Evaluate(run, dataset=f"folder:{folder}"))["test"]
    assert elsewhere != numbers


def _config(run):
    from whitenorm_lab.training.folder import RunFolder

    return RunFolder(run).read_config().to_dict()


@pytest.mark.parametrize(("mode", "size"), [("RGB", None), ("L", None), ("RGBA", 30), ("P", 90)])
def test_stylize(run, tmp_path, monkeypatch, capsys, mode, size):
    monkeypatch.chdir(tmp_path)
    image = write_image(tmp_path / "image.png", 61, 45, mode=mode)
    assert main(["stylize", str(image), "--model", str(run), *(["--size", str(size)] if size else [])]) == 0
    assert "image-stylized.png" in capsys.readouterr().out
    factor = 1 if size is None else size / 61
    with Image.open(tmp_path / "image-stylized.png") as painted:
        assert painted.size == (round(61 * factor), round(45 * factor))
        assert painted.mode == "RGB"
        if size is None:
            images = to_tensor(read_image(image))[None] / 255
            with torch.no_grad():
                expected = to_tensor(to_pil(load(run)(images)[0]))
            assert torch.equal(to_tensor(painted), expected)


def test_stylize_errors(run, tmp_path):
    from whitenorm_lab.training import Train

    image, text = write_image(tmp_path / "image.png", 40, 40), tmp_path / "text.png"
    text.write_text("no image")
    fit(Train(net="mlp-4", dataset="digits", epochs=1, folder=tmp_path / "digits", quiet=True))
    for changes, kind, message in [
        ({"image": tmp_path / "none.png"}, OSError, "none.png .got no such file"),
        ({"image": text}, OSError, f"a complete image in {text}"),
        ({"model": tmp_path / "digits"}, ValueError, "a run of style transfer .got .*, one of classification"),
        ({"model": tmp_path}, OSError, "no config.json"),
        ({"out": tmp_path / "painted.txt"}, ValueError, "to write .got .*painted.txt"),
        ({"out": image}, ValueError, "another output file than the image itself"),
        ({"size": 10}, ValueError, "got 10, which gives 10"),
        ({"device": "abacus"}, ValueError, "an available device .got 'abacus'"),
    ]:
        values = {"image": image, "model": run, "out": tmp_path / "out.jpg", **changes}
        with pytest.raises(kind, match=message):
            stylize(Stylize(**values))
        assert not (tmp_path / "out.jpg").exists()
    assert stylize(Stylize(image, run, tmp_path / "made/out.jpg")) == tmp_path / "made/out.jpg"


def test_preset_states_its_command_and_cost():
    """The cost is net and losses on crops of 256 pixels, three times forward, and once more for the content."""
    text, config = COMMANDS["sw-style"].__doc__, SwStyle()
    assert "whitenorm-lab train sw-style" in text.split("Command:")[1]
    with torch.device("meta"):
        net = StyleTransfer(config).build_model({})
        from torchvision.models import vgg16

        layers, image = vgg16(init_weights=False).features, torch.empty(1, 3, config.crop, config.crop)
        counts = []
        for module in (TransformerNet(), layers[:23], layers[:9]):
            with FlopCounterMode(display=False) as counter:
                module.eval()(image)
            counts.append(counter.get_total_flops())
    assert sum(type(module).__name__ == "SwitchableWhitening" for module in net.modules()) == 15
    painted, compared, content = counts
    # VGG-16's inputs have gradients, its weights have none.
    flops = (3 * painted + 2 * compared + content) * config.batch_size * config.steps
    stated = float(re.search(r"Cost: ([\d.]+) PFLOPs", text)[1])
    assert flops / 1e15 == pytest.approx(stated, rel=0.02)


def test_shares_of_processes(options):
    """Two processes train on halves of the same batches; with one test image, one of them has an empty batch."""
    config = Style(**{**options, "test_images": 1})
    task = StyleTransfer(config)
    loaders = [task.build_loaders(None, lambda: 0, rank, world) for rank, world in ((0, 1), (0, 2), (1, 2))]
    whole, *halves = [next(iter(one.train)) for one in loaders]
    assert torch.equal(torch.cat(halves), whole)
    tests = [next(iter(one.tests["test"])) for one in loaders]
    assert sorted(len(batch) for batch in tests) == [0, 1, 1]
    scores = task.test_scores()
    for batch in tests[1:]:
        task.test(task.build_model({}).eval(), task.prepare_batch(batch), scores)
    assert scores.totals[-1] == 1

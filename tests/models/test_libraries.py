"""Models of torchvision, timm and transformers: converted, trained a step, folded and compared."""

import copy
import warnings

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import count_layers, randomize_norms
from tests.helpers.sampling import mark_slow
from whitenorm import convert_, fold_, recipes

RECIPE_COUNTS = [("s1", 1), ("s1-b1", 17), ("s1-b2", 17), ("s1-b3", 17), ("s1-b12", 33), ("sw-7", 7), ("sw-14", 14)]


def make_model(library, name, **options):
    if library == "timm":
        return pytest.importorskip("timm").create_model(name, num_classes=10, **options)
    return pytest.importorskip("torchvision").models.get_model(name, weights=None, num_classes=10, **options)


@pytest.mark.parametrize(("where", "expected"), RECIPE_COUNTS)
@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("torchvision", "resnet50"),
        ("torchvision", "resnext50_32x4d"),
        ("torchvision", "wide_resnet50_2"),
        ("timm", "resnet50"),
        ("timm", "resnext50_32x4d"),
        ("timm", "wide_resnet50_2"),
    ],
)
def test_recipes_convert_as_many_norms_as_the_papers(library, name, where, expected):
    with torch.device("meta"):
        model = make_model(library, name)
    assert len(recipes.plan(model, "gw", where)) == expected


@pytest.mark.parametrize("name", ["res2net50_26w_4s", "resnest50d"])
def test_blocks_of_another_kind_are_an_error(name):
    with torch.device("meta"):
        model = make_model("timm", name)
    with pytest.raises(ValueError, match="norm for each convolution"):
        recipes.plan(model, "gw", "s1-b2")


def test_a_plan_names_no_module_twice():
    with torch.device("meta"):
        model = make_model("timm", "resnetv2_50")
    names = [change.name for change in recipes.plan(model, "gw", "s1-b1")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("where", ["all", "l1+df"])
@pytest.mark.parametrize("layer", ["iternorm", "dbn", "bw-sigma"])
@pytest.mark.parametrize(("library", "name"), [("torchvision", "resnet18"), ("timm", "resnet18")])
def test_a_trained_network_keeps_its_output(library, name, layer, where):
    model = randomize_norms(make_model(library, name)).eval()
    x = torch.randn(2, 3, 64, 64)
    expected = model(x)
    assert (convert_(model, layer, where)(x) - expected).abs().max() < 1e-4 * expected.abs().max()


FOLDED = [
    ("torchvision", "resnet18", 0),
    ("torchvision", "vgg11_bn", 0),
    ("torchvision", "mobilenet_v2", None),
    ("torchvision", "densenet121", None),
    ("torchvision", "resnext50_32x4d", None),
    ("torchvision", "googlenet", None),
    ("timm", "resnet18", 0),
    ("timm", "resnet26d", 0),
    ("timm", "mobilenetv3_small_050", None),
    ("timm", "efficientnet_b0", None),
]


SAMPLE = [("torchvision", "resnet18", 0), ("torchvision", "vgg11_bn", 0), ("timm", "efficientnet_b0", None)]


@pytest.mark.parametrize(("library", "name", "extra"), mark_slow(FOLDED, sample=SAMPLE))
def test_conversion_training_and_folding(library, name, extra):
    """``extra`` is the number of convolutions that folding adds; None leaves it unchecked."""
    torch.manual_seed(0)
    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model = make_model(library, name, **options)
    if name == "vgg11_bn":
        # VGG's own classifier has nine tenths of the weights, and no norm.
        model.classifier = nn.Linear(512 * 7 * 7, 10)
    convert_(model, "iternorm")
    convolutions = count_layers(model, nn.Conv2d)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(4, 3, 64, 64)
    loss = nn.functional.cross_entropy(model(x), torch.arange(4))
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    assert all(parameter.grad is not None for parameter in model.parameters())
    check_folding(model.eval(), x, 1e-4, convolutions, extra)
    # Statistics of so few samples are nearly singular, which amplifies float32's rounding.
    whitenorm.recalibrate_(model.double(), [x.double()], progress=False)
    check_folding(model, x.double(), 1e-8, convolutions, extra)


def check_folding(model, x, tolerance, convolutions, extra):
    expected = model(x)
    for dense in (False, True):
        with warnings.catch_warnings():
            # Groups of a convolution may not hold those of the whitening.
            warnings.filterwarnings("error" if dense else "ignore", "[0-9]+ of [0-9]+ layers are merged")
            folded = fold_(copy.deepcopy(model), dense=dense)
        assert count_layers(folded) == 0
        assert (folded(x) - expected).abs().max() < tolerance * expected.abs().max()
        if extra is not None:
            assert count_layers(folded, nn.Conv2d) == convolutions + extra


def test_dense_folding_leaves_no_convolution_behind_a_depthwise_one():
    model = convert_(make_model("torchvision", "mobilenet_v2"), "iternorm").eval()
    with pytest.warns(UserWarning, match="35 of 52 layers are merged; .*\n.*dense=True joins them"):
        folded = fold_(copy.deepcopy(model))
    assert count_layers(folded, nn.Conv2d) - count_layers(model, nn.Conv2d) == 17
    assert count_layers(fold_(model, dense=True), nn.Conv2d) == 52


@pytest.mark.parametrize("layer", ["sw", "gw"])
@pytest.mark.parametrize(("library", "name"), [("torchvision", "resnet50"), ("timm", "resnet26")])
def test_recipes_train_a_step(library, name, layer):
    model = convert_(make_model(library, name), layer, "s1-b2")
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.arange(2))
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_frozen_batch_norm_of_detection():
    ops = pytest.importorskip("torchvision.ops")
    norm = ops.FrozenBatchNorm2d(16).eval()
    norm.running_mean.uniform_()
    x = torch.randn(2, 16, 4, 4)
    with pytest.warns(UserWarning, match="frozen norm"):
        layer = convert_(norm, "iternorm")
    assert torch.allclose(layer(x), norm(x), atol=1e-5)


def test_frozen_batch_norm_of_transformers():
    """This norm has no attribute for its ε."""
    detr = pytest.importorskip("transformers.models.detr.modeling_detr")
    norm = detr.DetrFrozenBatchNorm2d(16).eval()
    norm.running_var.uniform_()
    x = torch.randn(2, 16, 4, 4)
    with pytest.warns(UserWarning, match="frozen norm") as caught:
        layer = convert_(norm, "iternorm")
    assert len(caught) == 1
    assert torch.allclose(layer(x), norm(x), atol=1e-5)


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("torchvision", "vit_b_16"),
        ("timm", "vit_tiny_patch16_224"),
        ("torchvision", "convnext_tiny"),
        ("timm", "convnext_atto"),
    ],
)
def test_layer_norms(library, name):
    size = {"image_size": 64} if name == "vit_b_16" else {"img_size": 64} if name.startswith("vit") else {}
    model = convert_(make_model(library, name, **size), "gw")
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.arange(2))
    loss.backward()
    assert loss.isfinite()


def test_a_language_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model = transformers.BertForSequenceClassification(config)
    convert_(model, "gw")
    assert count_layers(model, whitenorm.LayerWhitening) == 5
    tokens = torch.randint(50, (3, 7))
    output = model(input_ids=tokens, labels=torch.tensor([0, 1, 0]))
    output.loss.backward()
    assert model.bert.encoder.layer[0].output.LayerNorm.weight.grad.isfinite().all()


def test_a_vision_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = transformers.ResNetForImageClassification(config).eval()
    x = torch.randn(2, 3, 32, 32)
    expected = model(x).logits
    convert_(model, "iternorm")
    assert torch.allclose(model(x).logits, expected, atol=1e-4)
    convolutions = count_layers(model, nn.Conv2d)
    fold_(model)
    assert torch.allclose(model(x).logits, expected, atol=1e-4)
    assert count_layers(model, nn.Conv2d) == convolutions
    assert count_layers(model) == 0

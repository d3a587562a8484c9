"""Conversion of torch's transformer encoders: inference with padding masks, without the fast path of LayerNorm."""

import copy

import pytest
import torch
from torch import nn

import whitenorm
from whitenorm import conversion_of, convert_, load_converted

PADDING = torch.arange(7) >= torch.tensor([[7], [4], [2]])


def make_layer(**options):
    return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, **options)


def make_encoder(norm=None, nested=True, **options):
    torch.manual_seed(0)
    return nn.TransformerEncoder(make_layer(**options), 2, norm, enable_nested_tensor=nested)


def assert_same_in_eval_mode(model, x=None):
    """Check eval mode against training mode, which has no fast path; without dropout their outputs are the same."""
    x = torch.randn(3, 7, 16) if x is None else x
    expected = model.train()(x, src_key_padding_mask=PADDING)
    for inference in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with inference():
            torch.testing.assert_close(model.eval()(x, src_key_padding_mask=PADDING), expected)
            torch.testing.assert_close(model(x), model.train()(x))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("where", ["all", ["layers.1"], ["layers.0.norm2"]])
def test_padding_masks(norm_first, nested, final, where):
    model = make_encoder(nn.LayerNorm(16) if final else None, nested, norm_first=norm_first)
    assert_same_in_eval_mode(convert_(model, "gw", where))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_final_norm_keeps_the_fast_path():
    model = make_encoder(nn.LayerNorm(16))
    convert_(model, "gw", ["norm"]).eval()
    assert model.use_nested_tensor
    x = torch.randn(3, 7, 16)
    with torch.no_grad():
        output = model(x, src_key_padding_mask=PADDING)
        torch.testing.assert_close(output[0], model(x[:1])[0])


def test_a_single_layer():
    assert_same_in_eval_mode(convert_(make_layer(), "gw"))


def test_an_encoder_of_a_converted_layer():
    layer = convert_(make_layer(), "gw")
    with pytest.warns(UserWarning, match="activation_relu_or_gelu"):
        model = nn.TransformerEncoder(layer, 2)
    assert_same_in_eval_mode(model)


def test_inside_a_larger_model():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = make_encoder()
            self.head = nn.Linear(16, 3)

        def forward(self, x, src_key_padding_mask=None):
            return self.head(self.encoder(x, src_key_padding_mask=src_key_padding_mask))

    assert_same_in_eval_mode(convert_(Tagger(), "gw"))


def test_deepcopy():
    assert_same_in_eval_mode(copy.deepcopy(convert_(make_encoder(), "gw")))


def test_loaded_from_a_record():
    saved = convert_(make_encoder(), "gw").eval()
    model = load_converted(make_encoder(), saved.state_dict(), conversion_of(saved)).eval()
    x = torch.randn(3, 7, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), saved(x))
    assert_same_in_eval_mode(model)


def test_compiled():
    model = convert_(make_encoder(), "gw").eval()
    x = torch.randn(3, 7, 16)
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=PADDING)
        compiled = torch.compile(model, backend="eager")
        torch.testing.assert_close(compiled(x, src_key_padding_mask=PADDING), expected)


def test_layers_without_parameters():
    model = make_encoder()
    convert_(model, lambda width: whitenorm.LayerWhitening(width, elementwise_affine=False))
    assert_same_in_eval_mode(model)

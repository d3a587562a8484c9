"""Wrong use raises immediately; the error says what was expected, what was given and what to do."""

import pytest
import torch

import whitenorm
from whitenorm import functional

BATCH = [
    whitenorm.BatchWhitening,
    whitenorm.IterNorm,
    whitenorm.DecorrelatedBatchNorm,
    whitenorm.InstanceWhitening,
    whitenorm.SwitchableWhitening,
]


@pytest.mark.parametrize("make", BATCH)
def test_a_group_size_that_does_not_divide_lists_the_divisors(make):
    with pytest.raises(ValueError, match=r"divide the 12 channels \(got 5\); choose one of \[1, 2, 3, 4, 6, 12\]"):
        make(12, 5)


def test_num_groups_that_does_not_divide_lists_the_divisors():
    with pytest.raises(ValueError, match=r"divide the 12 channels \(got 5\); choose one of \[1, 2, 3, 4, 6, 12\]"):
        whitenorm.GroupWhitening(5, 12)
    with pytest.raises(ValueError, match=r"divide the 12 features \(got 24\); choose one of \[1, 2, 3, 4, 6, 12\]"):
        whitenorm.LayerWhitening(12, 24)
    with pytest.raises(ValueError, match=r"divide the 12 channels \(got 5\)"):
        functional.group_whitening(torch.randn(2, 12, 4), 5)


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
@pytest.mark.parametrize("make", BATCH)
def test_sizes_are_whole_numbers(make, size):
    with pytest.raises(ValueError, match="group_size to be a whole number of at least 1"):
        make(12, size)
    with pytest.raises(ValueError, match="num_features to be a whole number of at least 1"):
        make(size)


@pytest.mark.parametrize("make", BATCH)
def test_wrong_channel_count(make):
    with pytest.raises(ValueError, match=r"12 channels in dimension 1 \(got 10 in input of shape \(4, 10, 3\)\)"):
        make(12)(torch.randn(4, 10, 3))


@pytest.mark.parametrize("shape", [(12,), (1, 12, 2, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("make", BATCH)
def test_wrong_rank(make, shape):
    with pytest.raises(ValueError, match=f"expected 2D to 5D input .* \\(got {len(shape)}D input"):
        make(12)(torch.randn(shape))


@pytest.mark.parametrize("shape", [(12,), (1, 12, 2, 2, 2, 2)], ids=str)
def test_functions_check_the_rank_too(shape):
    x = torch.randn(shape)
    for function in (functional.instance_whitening, lambda x: functional.group_whitening(x, 4)):
        with pytest.raises(ValueError, match=f"expected 2D to 5D input .* \\(got {len(shape)}D input"):
            function(x)


def test_token_shape_is_made_of_whole_numbers():
    for shape in (12.0, (3, 0), ()):
        with pytest.raises(ValueError, match="normalized_shape to be a whole number"):
            whitenorm.LayerWhitening(shape, 3)


def test_wrong_token_shape_points_to_group_whitening():
    layer = whitenorm.LayerWhitening(12, 4)
    with pytest.raises(ValueError, match=r"\(\.\.\., 12\) \(got \(2, 12, 5\)\).* use GroupWhitening"):
        layer(torch.randn(2, 12, 5))


@pytest.mark.parametrize("make", [whitenorm.BatchWhitening, whitenorm.SwitchableWhitening, whitenorm.InstanceWhitening])
@pytest.mark.parametrize("solver", ["svd", 5, None])
def test_unknown_solver_lists_the_known_ones(make, solver):
    with pytest.raises(ValueError, match=r'"newton", "zca", "pca", "cholesky".*got'):
        make(12, solver=solver)


def test_unknown_statistic_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"""one of "bw", "iw", "bn", "in", "ln" \(got 'gn'\)"""):
        whitenorm.SwitchableWhitening(12, statistics=("bw", "gn"))
    with pytest.raises(ValueError, match="each statistic once"):
        whitenorm.SwitchableWhitening(12, statistics=("bw", "bw"))
    with pytest.raises(ValueError, match="a tuple of"):
        whitenorm.SwitchableWhitening(12, statistics="bw")
    for statistics in ((), {"bw", "iw"}):
        with pytest.raises(ValueError, match="a tuple of"):
            whitenorm.SwitchableWhitening(12, statistics=statistics)


def test_unknown_population_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"""be "whitening" or "covariance" \(got 'variance'\)"""):
        whitenorm.BatchWhitening(12, population="variance")


@pytest.mark.parametrize("make", [whitenorm.BatchWhitening, whitenorm.IterNorm, whitenorm.DecorrelatedBatchNorm])
@pytest.mark.parametrize("shape", [(1, 12), (1, 12, 1, 1), (0, 12, 3)], ids=str)
def test_one_value_per_channel_in_training_is_batch_norms_error(make, shape):
    layer, x = make(12), torch.randn(shape)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training, got input size"):
        layer(x)
    if x.numel():
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training, got input size"):
            torch.nn.functional.batch_norm(x, None, None, training=True)
    assert layer.num_batches_tracked == 0
    assert layer.eval()(x).shape == shape


def test_one_value_per_channel_and_sample():
    for layer in (whitenorm.InstanceWhitening(12), whitenorm.SwitchableWhitening(12, statistics=("iw", "in"))):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel and sample"):
            layer(torch.randn(4, 12))
    with pytest.raises(ValueError, match="Expected more than 1 value per group and sample"):
        whitenorm.GroupWhitening(12, 12)(torch.randn(4, 12))
    with pytest.raises(ValueError, match="Expected more than 1 value per group and sample"):
        whitenorm.LayerWhitening(12, 12)(torch.randn(4, 12))


@pytest.mark.parametrize("steps", [-1, 1.5])
def test_steps(steps):
    with pytest.raises(ValueError, match=r"steps to be a whole number of at least 0 \(got"):
        whitenorm.IterNorm(12, steps=steps)


@pytest.mark.parametrize("dtype", [torch.long, torch.uint8, torch.bool, torch.complex64], ids=str)
def test_input_that_is_not_floating_point(dtype):
    layers = [make(12) for make in BATCH]
    for layer in [*layers, whitenorm.GroupWhitening(4, 12)]:
        with pytest.raises(ValueError, match=rf"input to be floating-point \(got {dtype}\)"):
            layer(torch.ones(4, 12, 3, dtype=dtype))
    with pytest.raises(ValueError, match="floating-point"):
        whitenorm.LayerWhitening(12, 4)(torch.ones(4, 12, dtype=dtype))


@pytest.mark.parametrize("eps", [-1e-5, float("nan"), float("inf"), "1e-5", None])
def test_eps(eps):
    with pytest.raises(ValueError, match="expected eps from 0 to"):
        whitenorm.IterNorm(12, eps=eps)
    with pytest.raises(ValueError, match="expected eps from 0 to"):
        functional.whiten(torch.randn(4, 3), eps=eps)
    with pytest.raises(ValueError, match="expected eps from 0 to 1 "):
        functional.whiten(torch.randn(4, 3), eps=2.0, shrinkage=True)


@pytest.mark.parametrize("momentum", [-0.1, 1.5, "a"])
def test_momentum(momentum):
    with pytest.raises(ValueError, match="momentum from 0 to 1"):
        whitenorm.IterNorm(12, momentum=momentum)


def test_errors_for_missing_statistics():
    x = torch.randn(4, 12, 3)
    with pytest.raises(ValueError, match="expected running_mean and running_matrix when training=False"):
        functional.batch_whitening(x)
    with pytest.raises(ValueError, match="expected running_mean and running_cov when training=False"):
        functional.switchable_whitening(x, torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"mean_logits of shape \(2,\), one entry for each of \('bw', 'iw'\)"):
        functional.switchable_whitening(x, torch.zeros(3), torch.zeros(2), training=True)
    with pytest.raises(ValueError, match=r"weight of shape \(12,\), one per channel \(got \(3,\)\)"):
        functional.batch_whitening(x, weight=torch.ones(3), training=True)
    for training in (True, False):
        with pytest.raises(ValueError, match=r"running_matrix of shape \(3, 4, 4\), .* \(got \(4, 4\)\)"):
            functional.batch_whitening(x, torch.zeros(12), torch.eye(4), training=training, group_size=4)
        with pytest.raises(ValueError, match=r"running_mean of shape \(12,\)"):
            functional.batch_whitening(x, torch.zeros(5), torch.zeros(1, 12, 12), training=training)
    with pytest.raises(ValueError, match=r"a matrix \(N, D\) \(got shape \(4, 12, 3\)\)"):
        functional.whiten(x)
    for correction in (4, 0.5):
        with pytest.raises(ValueError, match="whole correction from 0 to N - 1 = 3"):
            functional.whiten(x[:, :, 0], correction=correction)
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        functional.whiten(x[:1, :, 0])

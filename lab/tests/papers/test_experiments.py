"""Every experiment at smoke scale: it runs, judges all its claims, and draws its picture."""

import matplotlib.image
import matplotlib.pyplot as plt
import pytest

from lab.tests.helpers.image_sets import accept_root, write_root
from whitenorm_lab import data
from whitenorm_lab.claims.results import Run, Store
from whitenorm_lab.claims.runner import reproduce
from whitenorm_lab.papers import EXPERIMENTS, SETUPS


@pytest.fixture(scope="session")
def small_root(tmp_path_factory):
    return write_root(tmp_path_factory.mktemp("data"))


@pytest.fixture
def root(small_root, monkeypatch):
    accept_root(monkeypatch, small_root)
    return small_root


def list_clipped_texts(figure):
    """List the titles and labels that stick out of the picture by more than a few pixels."""
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    texts = [
        text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label) if text.get_text()
    ]
    boxes = {text.get_text(): text.get_window_extent() for text in texts}
    plt.close(figure)
    return [words for words, b in boxes.items() if min(b.x0, b.y0) < -3 or b.x1 > width + 3 or b.y1 > height + 3]


def run_smoke(name, root, folder):
    """Run an experiment at smoke scale and check its results."""
    experiment = EXPERIMENTS[name]
    content = reproduce(experiment, folder, "smoke", data_root=root)
    assert len(content["claims"]) == len(experiment.claims) > 0
    for claim, judged in zip(experiment.claims, content["claims"], strict=True):
        assert judged["verdict"] in ("held", "not held", "not decided", "not run")
        assert judged["ours"]
        assert claim.exact or judged["verdict"] in ("not decided", "not run")
    assert Store(folder, name, "smoke").read()["claims"] == content["claims"]
    picture = matplotlib.image.imread(folder / name / "smoke.png")
    assert picture.std() > 0
    assert picture.shape[1] <= 2400
    assert not list_clipped_texts(experiment.draw(content["runs"]))


# One for each kind of experiment, and each task.
SAMPLE = (
    "dbn-axes",
    "dbn-vgg",
    "iternorm-snd",
    "iternorm-wrn",
    "gw-constraints",
    "gw-coco",
    "gw-nmt",
    "sw-flops",
    "sw-style",
)


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS]
)
def test_smoke(name, root, tmp_path):
    run_smoke(name, root, tmp_path)


def has_data(root, name):
    """Return whether a data root has a data set of this name."""
    return any((root / folder).is_dir() for folder in (data.SETS[name].folders if name in data.SETS else [name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, experiment in EXPERIMENTS.items() if experiment.data])
def test_smoke_on_real_data(name, tmp_path):
    """Real data may differ from the small test sets, for example in the number of characters of a text."""
    root = data.root_folder(None)
    missing = [one for one in EXPERIMENTS[name].data if root is None or not has_data(root, one)]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} in ${data.ROOT_VARIABLE}")
    run_smoke(name, root, tmp_path)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_plans(name):
    experiment = EXPERIMENTS[name]
    for scale, parameters in experiment.scales.items():
        settings = experiment.plan(parameters)
        assert settings, scale
        assert len({str(one) for one in settings}) == len(settings), f"{scale} plans a run twice"
    assert ":`" not in SETUPS[name], "the site shows the text literally"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_there_are_enough_seeds_and_the_reduction_is_described(name):
    experiment = EXPERIMENTS[name]
    if all(claim.exact for claim in experiment.claims):
        return
    assert min(experiment.seeds["default"], experiment.seeds["paper"]) >= experiment.min_seeds >= 3
    assert experiment.reduction or experiment.scales["default"] == experiment.scales["paper"]


def test_experiments_that_share_runs_have_some_in_common():
    """Sharing is mutual; the runs are those of the default scale with the same seeds."""
    for experiment in EXPERIMENTS.values():
        for other in map(EXPERIMENTS.__getitem__, experiment.shares):
            assert experiment.id in other.shares
            assert experiment.first_seed == other.first_seed
            runs, other_runs = (
                [Run(settings, 0, {}, 0.0) for settings in one.plan(one.scales["default"])]
                for one in (experiment, other)
            )
            assert any(run.is_equivalent(another) for run in runs for another in other_runs)

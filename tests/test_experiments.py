"""Every experiment at smoke scale: it runs, judges all its claims, and draws."""

import matplotlib.image
import pytest
from image_sets import write_root

from whitenorm.lab.experiments import EXPERIMENTS
from whitenorm.lab.reproduce.results import Store
from whitenorm.lab.reproduce.runner import reproduce


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return write_root(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke(name, root, tmp_path):
    experiment = EXPERIMENTS[name]
    content = reproduce(experiment, tmp_path, "smoke", data_root=root)
    assert len(content["claims"]) == len(experiment.claims) > 0
    for claim, written in zip(experiment.claims, content["claims"], strict=True):
        assert written["verdict"] in ("held", "not held", "not decided", "not run")
        assert written["ours"]
        assert claim.exact or written["verdict"] in ("not decided", "not run")
    assert Store(tmp_path, name, "smoke").read()["claims"] == content["claims"]
    picture = matplotlib.image.imread(tmp_path / name / "smoke.png")
    assert picture.std() > 0
    assert picture.shape[1] <= 2400


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_plans(name):
    experiment = EXPERIMENTS[name]
    for scale, parameters in experiment.scales.items():
        settings = experiment.plan(parameters)
        assert settings, scale
        assert len({str(one) for one in settings}) == len(settings), f"{scale} plans a run twice"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_run_can_be_decided_and_says_what_it_is_short_of(name):
    experiment = EXPERIMENTS[name]
    if all(claim.exact for claim in experiment.claims):
        return
    assert min(experiment.seeds["default"], experiment.seeds["paper"]) >= experiment.fewest_seeds >= 3
    assert experiment.reduction or experiment.scales["default"] == experiment.scales["paper"]

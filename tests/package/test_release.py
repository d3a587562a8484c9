"""What is published beside the code: versions, extras, citation, workflow. Each fact is the same wherever it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import whitenorm

tomllib = pytest.importorskip("tomllib")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text()
OLDEST, NEWEST = (re.search(rf"^{name}_TORCH := (.+)$", MAKEFILE, re.MULTILINE)[1] for name in ("OLDEST", "NEWEST"))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def named(requirements):
    """Names of packages, normalised as in PEP 503."""
    return {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", words)[0]).lower() for words in requirements}


def steps():
    """All that the workflow runs, with the values of its matrix put in, and the Python it runs on."""
    for job in WORKFLOW["jobs"].values():
        for row in job.get("strategy", {}).get("matrix", {}).get("include", [{}]):
            words = [step.get("run", "") for step in job["steps"]]
            pythons = [
                step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", {})
            ]
            for name, value in row.items():
                words = [line.replace(f"${{{{ matrix.{name} }}}}", value) for line in words]
                pythons = [line.replace(f"${{{{ matrix.{name} }}}}", value) for line in pythons]
            yield " ".join(words), pythons[0]


def test_the_version_is_the_same_everywhere():
    # What is not released yet stands above.
    newest = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest == CITATION["version"] == whitenorm.__version__


def test_the_changelog_is_short():
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert all(len(version.split()) <= 900 for version in versions)


def test_versions_of_torch():
    bound = next(words for words in PROJECT["dependencies"] if words.startswith("torch"))
    assert f"{bound.removeprefix('torch>=')}.0" == OLDEST
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert f"{OLDEST}, the oldest that is supported" in contributing
    assert f"{NEWEST}, the newest" in contributing
    runs = [words for words, _ in steps()]
    assert {"TORCH=oldest", "TORCH=newest"} <= {word for words in runs for word in words.split()}


def test_versions_of_python():
    supported = re.findall(r"Python :: (3\.\d+)\b", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={supported[0]}"
    pythons = {python for _, python in steps()}
    assert pythons <= set(supported)
    assert {supported[0], supported[-1]} <= pythons


def test_the_workflow_calls_targets_that_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
    called = {target for words, _ in steps() for target in re.findall(r"\bmake ([a-z][a-z-]*)", words)}
    assert called == {"lint", "test", "test-torch", "docs", "wheel"}
    assert called <= targets
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    assert targets == set(phony)


def test_everything_of_the_extras_is_pinned():
    # Triton is installed beside a CPU build of torch; a torch that comes with it decides itself.
    pinned = named((ROOT / "constraints.txt").read_text().replace("#", "_").splitlines()[1:])
    wanted = set().union(*(named(words) for words in EXTRAS.values())) - {"whitenorm"}
    assert wanted <= pinned


def test_the_lab_has_what_inspecting_needs():
    assert "whitenorm[inspect]" in EXTRAS["lab"]
    assert named(EXTRAS["inspect"]) == {"pandas", "rich", "tyro"}


def test_inspecting_needs_its_extra_alone(tmp_path):
    """The page too, with all that only the lab has refused."""
    refused = sorted((named(EXTRAS["lab"]) | {"pil"}) - named(EXTRAS["inspect"]) - {"whitenorm"})
    (tmp_path / "net.py").write_text(
        "from torch import nn\nnet = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))\n"
    )
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0].lower().replace("_", "-") in {refused}:
            raise ModuleNotFoundError(f"refused: {{name}}", name=name)
sys.meta_path.insert(0, Refuse())
from whitenorm.cli import main
sys.exit(main(["inspect", "net.py:net", "--layer", "gw", "--html", "page.html", "--csv", "table.csv"]))
"""
    pytest.importorskip("tyro")
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "table.csv").exists()


PAPERS = {
    "1804.08450": ("Decorrelated Batch Normalization", "Huang Yang Lang Deng", "CVPR 2018"),
    "1904.03441": ("Iterative Normalization", "Huang Zhou Zhu Liu Shao", "CVPR 2019"),
    "1904.09739": ("Switchable Whitening", "Pan Zhan Shi Tang Luo", "ICCV 2019"),
    "2009.13333": ("Group Whitening", "Huang Zhou Liu Zhu Shao", "CVPR 2021"),
}


def test_the_citation_is_a_citation_file():
    """What the schema of version 1.2.0 asks for, of those keys that are used."""
    assert CITATION["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(CITATION)
    assert CITATION["license"] == PROJECT["license"]
    for work in (CITATION, *CITATION["references"]):
        assert isinstance(work["title"], str)
        assert work["type"] in {"software", "conference-paper"}
        assert work["authors"]
        for author in work["authors"]:
            assert set(author) in ({"name"}, {"family-names", "given-names"})
        for identifier in work.get("identifiers", []):
            assert set(identifier) == {"type", "value"}
            assert identifier["type"] == "other"


@pytest.mark.parametrize("number", PAPERS)
def test_the_papers_are_cited(number):
    title, authors, conference = PAPERS[number]
    (paper,) = [work for work in CITATION["references"] if work["url"].endswith(number)]
    assert paper["title"].startswith(title)
    assert [author["family-names"] for author in paper["authors"]] == authors.split()
    assert paper["conference"]["name"] == conference
    assert str(paper["year"]) == conference.split()[1]
    assert paper["identifiers"] == [{"type": "other", "value": f"arXiv:{number}"}]

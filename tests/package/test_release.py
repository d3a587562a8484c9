"""Facts that are written in several files agree: versions, extras, targets, citation, workflows."""

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
LAB = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text()
OLDEST, NEWEST = (re.search(rf"^{name}_TORCH := (.+)$", MAKEFILE, re.MULTILINE)[1] for name in ("OLDEST", "NEWEST"))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def package_names(requirements):
    """Return the names of packages, normalised as in PEP 503."""
    return {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", line)[0]).lower() for line in requirements}


def workflow_runs(name):
    """Yield the commands of each job of a workflow, with the values of its matrix, and the version of Python."""
    for job in WORKFLOWS[name]["jobs"].values():
        for row in job.get("strategy", {}).get("matrix", {}).get("include", [{}]):
            commands = " ".join(step.get("run", "") for step in job["steps"])
            options = [step["with"] for step in job["steps"] if "python-version" in step.get("with", {})]
            python = options[0]["python-version"] if options else ""
            for key, value in row.items():
                commands = commands.replace(f"${{{{ matrix.{key} }}}}", value)
                python = python.replace(f"${{{{ matrix.{key} }}}}", value)
            yield commands, python


def test_the_version_is_the_same_everywhere():
    # Changes that are not released yet stand above.
    newest = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    lab = re.search(r'__version__ = "(.+)"', (ROOT / "lab/src/whitenorm_lab/__init__.py").read_text())[1]
    assert newest == CITATION["version"] == whitenorm.__version__ == lab


def test_the_lab_needs_the_library_of_its_own_version():
    (needed,) = [line for line in LAB["dependencies"] if line.startswith("whitenorm")]
    assert needed == f"whitenorm[inspect]=={'.'.join(whitenorm.__version__.split('.')[:2])}.*"


def test_the_changelog_is_short():
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert all(len(version.split()) <= 900 for version in versions)


def test_versions_of_torch():
    bound = next(line for line in PROJECT["dependencies"] if line.startswith("torch"))
    assert f"{bound.removeprefix('torch>=')}.0" == OLDEST
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert OLDEST in contributing
    assert NEWEST in contributing
    commands = " ".join(commands for commands, _ in workflow_runs("test"))
    assert {"TORCH=oldest", "TORCH=newest"} <= set(commands.split())


def test_versions_of_python():
    supported = re.findall(r"Python :: (3\.\d+)\b", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={supported[0]}"
    pythons = {python for _, python in workflow_runs("test") if python}
    assert pythons <= set(supported)
    assert {supported[0], supported[-1]} <= pythons


def test_workflows_and_hooks_call_targets_that_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
    commands = {name: " ".join(commands for commands, _ in workflow_runs(name)) for name in WORKFLOWS}
    commands["hooks"] = " ".join(hook["entry"] for hook in HOOKS)
    called = {name: set(re.findall(r"\bmake ([a-z][a-z-]*)", text)) for name, text in commands.items()}
    assert called == {
        "test": {"lint", "test-all", "test-torch", "docs", "wheel"},
        "release": {"wheel"},
        "hooks": {"style", "types"},
    }
    assert set().union(*called.values()) <= targets
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    assert targets == set(phony)


def test_a_release_is_tested_before_it_is_published():
    """The tag must be the version, and publishing must wait for the wheels, which ``make wheel`` builds and uses."""
    release = WORKFLOWS["release"]
    # YAML reads the key `on` as true.
    assert release[True]["push"]["tags"] == ["v*"]
    assert release["jobs"]["publish"]["needs"] == "build"
    assert "whitenorm/_version.py" in " ".join(commands for commands, _ in workflow_runs("release"))


def test_everything_that_is_installed_is_pinned():
    # Triton is installed beside a CPU build of torch; a torch that comes with it decides itself.
    pinned = package_names((ROOT / "constraints.txt").read_text().replace("#", "_").splitlines()[1:])
    wanted = set().union(*map(package_names, (*EXTRAS.values(), LAB["dependencies"]))) - {"whitenorm"}
    assert wanted <= pinned


def test_inspecting_needs_its_extra_alone(tmp_path):
    """The table, the page and the file are made where every other package of the lab is refused."""
    assert package_names(EXTRAS["inspect"]) == {"pandas", "rich", "tyro"}
    refused = sorted((package_names(LAB["dependencies"]) | {"pil", "whitenorm-lab"}) - {"whitenorm"})
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
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "table.csv").exists()


PAPERS = {
    "1804.08450": ("Decorrelated Batch Normalization", "Huang Yang Lang Deng", "CVPR 2018"),
    "1904.03441": ("Iterative Normalization", "Huang Zhou Zhu Liu Shao", "CVPR 2019"),
    "1904.09739": ("Switchable Whitening", "Pan Zhan Shi Tang Luo", "ICCV 2019"),
    "2009.13333": ("Group Whitening", "Huang Zhou Liu Zhu Shao", "CVPR 2021"),
}


def test_the_citation_is_a_citation_file():
    """The keys that are used have the values that the schema of version 1.2.0 asks for."""
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

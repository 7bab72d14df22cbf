"""What surrounds the code: licence, changelog, forms and hooks are whole and speak of this project."""

import re
import shutil
import subprocess

import pytest
import yaml

from tests.helpers.model_zoo import ROOT

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_form_has_what_github_asks_of_one(path):
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        return
    assert {"name", "description", "body"} <= set(form)
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers)
    for field in form["body"]:
        assert field["type"] in ("input", "textarea") and field["attributes"]["label"]


def test_bug_report_asks_for_what_a_log_says():
    """The words are those of the program: a report without them cannot be understood."""
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug_report.yml").read_text()
    assert '"precision:"' in text and "-dry_run" in text
    assert 'f"precision: {' in (ROOT / "image_classification" / "report.py").read_text()


def test_licence_is_the_one_of_the_metadata():
    assert "Apache License\n                           Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
    assert 'license = "Apache-2.0"' in PROJECT


def test_changelog_has_a_section_for_the_version():
    version = re.search(r'^version = "(.+)"', PROJECT, re.MULTILINE)[1]
    sections = re.findall(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased" and (version in sections or len(sections) == 1)


def test_commit_hooks_run_what_lint_runs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    wanted = {line.strip().removeprefix("$(BIN)/").split()[0] for line in lint.splitlines()}
    assert {hook["entry"].removeprefix(".venv/bin/").split()[0] for hook in hooks} == wanted


@pytest.mark.parametrize("name", [".venv", ".venv-peers", ".venv-matrix"])
def test_environment_that_is_a_link_is_ignored_by_git(tmp_path, name):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / name).symlink_to(tmp_path)
    found = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["??", ".gitignore"]

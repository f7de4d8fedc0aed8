"""The rules of the house, read off the import statements: nothing imports to its right."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dsl"
LAYERS = [
    {"errors"},
    {"files"},
    {"types", "config", "randomness", "image"},
    {"geometry"},
    {"data", "models", "metrics"},
    {"ssod"},
    {"methods"},
    {"engine"},
    {"report", "inference", "labeling"},
    {"onnx_detector"},
    {"quantise"},
    {"compose", "rundata", "gallery", "watch", "proxies", "run_files"},
    {"doctor"},
    {"export"},
    {"training"},
    {"dry_run"},
    {"api"},
    {"demo", "bench"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
APART = {("data", "models"), ("models", "data"), ("metrics", "models"), ("metrics", "data")}
FILES = sorted(PACKAGE.rglob("*.py"))


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """Every module that the file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_imported(file: Path) -> set[str]:
    parts = [name.split(".") for name in imports(file)]
    return {p[1] for p in parts if p[0] == "dsl" and len(p) > 1 and p[1] in RANK}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_nothing_imports_to_its_right(file: Path) -> None:
    own = room(file)
    if own == "__init__":
        return
    assert own in RANK, f"{own}: give it a layer"
    for other in rooms_imported(file):
        assert RANK[other] <= RANK[own], f"{own} imports {other}"
        assert (own, other) not in APART, f"{own} and {other} do not know each other"


def test_the_engine_knows_methods_by_their_contract_alone() -> None:
    for file in FILES:
        if room(file) == "engine":
            methods = {name for name in imports(file) if name.startswith("dsl.methods.")}
            assert all(name.startswith("dsl.methods.base") for name in methods), file


def test_ssod_never_sees_a_detector() -> None:
    for file in FILES:
        if room(file) == "ssod":
            assert "models" not in rooms_imported(file), file


TORCH_FREE_ROOMS = {"config", "errors", "files", "image", "cli", "onnx_detector"}
TORCH_FREE = [f for f in FILES if room(f) in TORCH_FREE_ROOMS]


@pytest.mark.parametrize("file", TORCH_FREE, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_these_files_import_no_torch_at_the_top(file: Path) -> None:
    tree = ast.parse(file.read_text())
    top = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    names = {a.name for n in top for a in n.names} | {getattr(n, "module", "") for n in top}
    assert not any(str(name).split(".")[0] in {"torch", "torchvision"} for name in names)


def test_only_the_composition_root_takes_settings() -> None:
    """Below it components are handed over built."""
    allowed = {
        "config", "compose", "training", "rundata", "doctor", "dry_run", "api", "bench",
        "cli",
    }  # fmt: skip
    for file in FILES:
        if room(file) not in allowed:
            assert "config" not in rooms_imported(file), file


def test_the_doctor_sees_models_through_their_rule_of_assignment() -> None:
    """It judges data by what the detector answers for; building one is the composition root's."""
    allowed = {"dsl.models.assign", "dsl.models.fpn", "dsl.models.fcos"}
    for file in FILES:
        if room(file) == "doctor":
            modules = {n for n in imports(file) if n.startswith("dsl.models.")}
            assert {".".join(n.split(".")[:3]) for n in modules} <= allowed, file

"""A process as a user has it: found by entry point, Inductor runs the rest on a CPU, a later process shares
its caches."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import json, sys, warnings, torch
from torch._inductor.custom_graph_pass import CustomGraphPass
class Lora(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(64, 64)
        self.a = torch.nn.Linear(64, 8, bias=False)
        self.b = torch.nn.Linear(8, 64, bias=False)
    def forward(self, x):
        return (self.w(x) + 2 * self.b(self.a(x))).relu()
class Users(CustomGraphPass):
    seen = 0
    def __call__(self, graph):
        Users.seen += 1
    def uuid(self):
        return "users"
warnings.simplefilter("error", UserWarning)
torch.manual_seed(0)
torch._inductor.config.post_grad_custom_pre_pass = Users()
models, x = [Lora(), Lora()], torch.randn(4, 64)
compiled = [torch.compile(model, backend="fusioncc", options={"on_error": "raise"}) for model in models]
with torch.no_grad():
    for model, run in zip(models, compiled):
        torch.testing.assert_close(run(x), model(x))
    seen = Users.seen
    eager = torch.compile(models[0], backend="fusioncc", options={"rest": "eager"})
    assert torch.equal(eager(x), models[0](x))
import fusioncc
inductor = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]
print(json.dumps({
    "plans": [[plan.to_json() for plan in fusioncc.plan_of(run)] for run in compiled],
    "eager": [plan.to_json() for plan in fusioncc.plan_of(eager)], "users": seen, "hits": inductor,
}))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the installed package's metadata: the entry points of ``pyproject.toml``."""
    folder = tmp_path / "site"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = folder / "fusioncc-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fusioncc\nVersion: {project['version']}\n")
    lines = [f"{name} = {target}" for name, target in project["entry-points"]["torch_dynamo_backends"].items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[torch_dynamo_backends]", *lines, ""]))
    return folder


def run(site: Path, cache: Path) -> dict[str, Any]:
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    settings |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]), "PYTHONHASHSEED": "random"}
    settings |= {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "FUSIONCC_CACHE_DIR": str(cache / "fusioncc")}
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, cwd=cache, env=settings, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.exhaustive
def test_two_processes_that_share_caches(site: Path, tmp_path: Path) -> None:
    first, second = run(site, tmp_path), run(site, tmp_path)
    check_vendor_products_are_kept_with_the_reason(json.loads(first["plans"][0][0]))
    assert json.loads(first["eager"][0])["groups"][0]["schedule"]["kind"] == "library"
    assert first["users"] >= 1, "the user's own pass was not called"
    assert first["plans"][0] == first["plans"][1], "equal models have equal plans"
    assert second["users"] == 0 and second["hits"] > first["hits"], "Inductor's cache did not answer"
    assert second["plans"] == first["plans"]


def check_vendor_products_are_kept_with_the_reason(plan: dict[str, Any]) -> None:
    assert [group["schedule"]["kind"] for group in plan["groups"]] == ["library"]
    assert any("set TRITON_INTERPRET=1" in note for note in plan["notes"])
    emitted = [c for c in plan["groups"][0]["candidates"] if c["kind"] not in ("library", "merged")]
    reasons = [c["reason"] for c in emitted if not c["legal"]]
    assert reasons and all("do not run on a CPU" in reason for reason in reasons)

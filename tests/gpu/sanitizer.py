"""compute-sanitizer over one case of every kind of schedule: memcheck, and racecheck (which sees shared memory only).

    python -m tests.gpu.sanitizer --out docs/compute-sanitizer.txt

Each case checks itself in a process of its own, with every tensor in an allocation of its own, so that a byte beyond
it is seen. Exit code 1 when a tool finds an error or a case is wrong.
"""

import argparse
import datetime
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fusioncc.codegen.emission import KINDS
from tests.codegen.cases import Lora, Main, group

CASES = {
    "ragged": group(100, 200, Main(330, (Lora(12),), bias=True), Main(72, (Lora(3),))),
    "one_row": group(1, 1000, Main(330, (Lora(12),)), Main(72, ())),
    "descriptors": group(1000, 1024, Main(4096, (Lora(16),)), Main(1032, (Lora(16),))),
}
"""Groups whose tiles pass the end of M, N and K; of one row; and with a form through TMA."""


TOOLS = {"memcheck": tuple(CASES), "racecheck": ("ragged",)}
"""The cases that each tool sees; racecheck is slow."""


def kinds(case: str) -> list[str]:
    """The kinds that have a form for the case."""
    from fusioncc.autotune import best
    from fusioncc.device import get_device

    return [kind for kind in KINDS if best(CASES[case], get_device("h200"), kind) is not None]


def checked(kind: str, case: str) -> int:
    """Run the case once, in guarded buffers."""
    from fusioncc.runtime.load import load
    from tests.gpu.test_schedules import module_of

    emitted = module_of(CASES[case], kind)
    module = load(emitted.name, emitted.source)
    problem = module.check(module.draw(0))
    print(f"{kind} {case}: {problem or 'right'}")
    return int(bool(problem))


def sanitized(job: tuple[str, str, str]) -> tuple[int, str]:
    """One case under one tool: exit code, and the tool's lines."""
    tool, kind, case = job
    me = [sys.executable, "-m", "tests.gpu.sanitizer", "--kind", kind, "--case", case]
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *me]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("=========", kind))]
    return done.returncode, "\n".join([f"$ compute-sanitizer --tool {tool}: {kind}, {case}", *lines[:40]])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kind", choices=tuple(KINDS))
    parser.add_argument("--case", choices=tuple(CASES))
    parser.add_argument("--jobs", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.kind:
        return checked(arguments.kind, arguments.case)
    import torch
    import triton

    jobs = [(tool, kind, case) for tool, cases in TOOLS.items() for case in cases for kind in kinds(case)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(sanitized, jobs))
    card, today = torch.cuda.get_device_name(), datetime.date.today().isoformat()
    head = f"{card}, torch {torch.__version__}, triton {triton.__version__}, {today}"
    failed = sum(code != 0 for code, _ in results)
    text = "\n\n".join([f"{head}: {len(results)} runs, {failed} with errors", *(text for _, text in results)])
    (arguments.out or Path("compute-sanitizer.txt")).write_text(text + "\n")
    print(text.splitlines()[0])
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

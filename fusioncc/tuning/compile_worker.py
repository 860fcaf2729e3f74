"""The process that compiles schedules ahead: ``python -m fusioncc.tuning.compile_worker``.

It sees no card and takes no memory of one. What it compiles, the process that measures finds in Triton's cache.
"""

import os
from functools import partial

from fusioncc.errors import FusionError
from fusioncc.tuning.emitted import built
from fusioncc.tuning.messages import Build, Done, Refused, Runs
from fusioncc.tuning.pipes import Parent


def main() -> None:
    parent: Parent[Build] = Parent(Build)
    from fusioncc.runtime.ahead import build_ahead, compile_for

    os.nice(10)  # the process that measures meanwhile comes first
    parent.answer(Done())
    for request in parent.requests():
        compile_for(request.device)
        build = partial(build_ahead, device=request.device)
        try:
            made = built(request.job, request.schedule, request.device, build)
        except FusionError as error:
            parent.answer(Refused("build", str(error)))
        else:
            parent.answer(Runs(made.schedule))


if __name__ == "__main__":
    main()

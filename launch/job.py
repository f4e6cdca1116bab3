"""What a SLURM job does: its runs at the same time, and an end that SLURM and Submitit understand.

| what happens | what the job does | what SLURM does |
|---|---|---|
| all runs finished | returns | COMPLETED |
| a run failed | lets the others finish, then raises, naming it | FAILED |
| the time limit is near (SIGUSR2) | the runs save; Submitit puts the job back into the queue | starts it again |
| preemption, or scancel (SIGTERM) | the runs save; exit status 143, no result | starts it again, or not |

Submitit's own way with SIGTERM, the variable SUBMITIT_PREEMPT_SIGNAL, is not used: it asks SLURM to queue the job
again, SLURM refuses, since it does so by itself, and the refusal becomes the job's result.
"""

import os
import signal
import sys
import time
from pathlib import Path

from submitit.helpers import DelayedSubmission, TorchDistributedEnvironment

from launch.pool import Pool, slots
from zo.run.signals import INTERRUPTED

GRACE_S = 2.0
"""Every process of a job is sent a signal at once: a run may end of it an instant before this one hears of it."""


class RunsFailed(RuntimeError):
    """Runs of a job failed; its text names them."""


class Job:
    """The runs of one job, to be called there. Small to pickle: the runs are frozen in their directories.

    Where a job has several tasks, each of them calls it: their processes divide its run.
    """

    def __init__(self, directories: list[str]):
        self.directories = directories

    def __call__(self) -> dict[str, int]:
        """Makes or continues the runs; returns their exit statuses by directory.

        Raises:
            RunsFailed: If one or more of them failed, and no others are left to be continued.
            SystemExit: With 143 if there is something to be continued.
        """
        queue_again = signal.getsignal(signal.SIGUSR2)  # Submitit's
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        gpus = [gpu for gpu in visible.split(",") if gpu]
        count = len(self.directories)
        if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
            task = TorchDistributedEnvironment()
            task.export(set_cuda_visible_devices=False, overwrite=True)
            gpus = [gpus[task.local_rank % len(gpus)]] if gpus else gpus
        pool = Pool([Path(d) for d in self.directories], slots(gpus, count))
        pool.run()
        if pool.unfinished and not pool.signals:
            time.sleep(GRACE_S)
        if pool.unfinished:
            if signal.SIGUSR2 in pool.signals and callable(queue_again):
                queue_again(signal.SIGUSR2, None)
            print(f"{len(pool.unfinished)} runs are to be continued", file=sys.stderr)
            sys.exit(INTERRUPTED)
        if pool.failures:
            told = f"{len(pool.failures)} of {count} runs failed"
            raise RunsFailed("\n  ".join([told, *pool.failures]))
        return {str(path): code for path, code in pool.codes.items()}

    def checkpoint(self) -> DelayedSubmission:
        """Returns what Submitit is to call when the job starts again: the same."""
        return DelayedSubmission(self)

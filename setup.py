"""What pyproject.toml cannot say: a wheel holds the suite's files, too, in zo/_suite."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

MEASURED = map(str, Path("results/measured").glob("*/*.parquet"))  # the runs that tables read
SUITE = ("train.py", "conf", "launch", "analysis", "results/paper", "results/settings", *MEASURED)


class BuildWithSuite(build_py):
    """Copies what `zo train` and the other commands run beside the package."""

    def run(self) -> None:
        """As setuptools does; an editable install reads the repository itself."""
        super().run()
        if self.editable_mode:
            return
        for name in SUITE:
            target = Path(self.build_lib) / "zo" / "_suite" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if Path(name).is_dir():
                shutil.copytree(
                    name, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
                )
            else:
                shutil.copy2(name, target)


setup(cmdclass={"build_py": BuildWithSuite})

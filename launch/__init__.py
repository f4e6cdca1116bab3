"""How to reach machines: what a sweep consists of, what it costs, what of it is done. Nothing scientific."""

import argparse


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of `python -m launch.NAME`, whose help is the module's docstring."""
    layout = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(
        f"python -m launch.{name}", description=description, formatter_class=layout
    )

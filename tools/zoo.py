"""Add a finished run to the zoo of this source tree: python -m tools.zoo runs/a/seed-0 NAME --recipe RECIPE.

It writes lcrbnn/zoo/files/NAME.safetensors (zoo/NAME.safetensors if the file is too large for the wheel), reads all
test images with that file (once more than the run did), and writes results/zoo/NAME.json and the list
lcrbnn/zoo/index.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lcrbnn.cli.train import add_options
from lcrbnn.errors import InputError
from lcrbnn.train.options import Options
from lcrbnn.zoo.add import add_run

RECORDS = Path(__file__).parents[1] / "results" / "zoo"


def main() -> None:
    """Add one run."""
    parser = argparse.ArgumentParser(description="add a finished run to the zoo")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("name", metavar="NAME", help="what it is to be called")
    parser.add_argument("--recipe", required=True, help="the recipe that it was made from")
    parser.add_argument(
        "--siblings", type=Path, metavar="FOLDER", help="records of the same settings with all seeds, for their mean"
    )
    parser.add_argument("--note", default="", help="what a reader must know before comparing networks of the list")
    add_options(parser)
    args = parser.parse_args()
    try:
        added = add_run(
            args.run, args.name, args.recipe, RECORDS, Options(args.device, args.data_folder), args.siblings, args.note
        )
    except InputError as error:
        print(f"tools.zoo: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(f"{added.name}: {added.top1:.2f} % of {added.images:,} test images, {added.bytes:,} bytes\n{added.recipe}")


if __name__ == "__main__":
    main()

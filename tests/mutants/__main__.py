"""``python -m tests.mutants [MODULE…]``: a table, and each mutant that no test notices."""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.mutants.making import Mutant, mutants
from tests.mutants.trial import Bench, prepare

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Explanations:
    """Why mutants that no test notices are no faults: by where they are, what was, what is."""

    here: dict[tuple[str, str, str], str]
    everywhere: set[tuple[str, str]]

    @classmethod
    def of(cls, module: str, function: str | None) -> Explanations:
        """Return those for a module, or one function of it."""
        texts = tomllib.loads((HERE / "explained.toml").read_text())
        return cls(
            {
                (one["where"], one["was"], now): one["why"]
                for one in texts.get(module, [])
                for now in one["now"]
                if function in (None, one["where"])
            },
            {(one["was"], now) for one in texts["everywhere"] for now in one["now"]},
        )

    def cover(self, mutant: Mutant) -> bool:
        """Whether this mutant is explained."""
        return mutant.key in self.here or mutant.key[1:] in self.everywhere


def survivors(bench: Bench, found: list[Mutant], told: bool) -> list[int]:
    """Return which of the mutants no test notices."""
    left = []
    for place, mutant in enumerate(found):
        test = bench.notices(mutant.source)
        if test is None:
            left.append(place)
        if told:
            print(f"{place + 1}/{len(found)} {mutant.was!r} → {mutant.now!r}: {test}", flush=True)
    return left


def main() -> int:
    """Try all mutants of the modules."""
    modules = tomllib.loads((HERE / "modules.toml").read_text())
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=", ".join(modules))
    parser.add_argument("-v", action="store_true", help="tell which test notices which mutant")
    parser.add_argument("-w", metavar="FUNCTION", help="only mutants of this function")
    options = parser.parse_args()
    if strange := set(options.modules) - set(modules):
        parser.error(f"no such module in modules.toml: {', '.join(sorted(strange))}")
    prepare()
    bad, rows = False, []
    for name in options.modules or modules:
        begun = time.monotonic()
        bench = Bench(modules[name]["module"], modules[name]["tests"])
        found = mutants(bench.path.read_text())
        if options.w is not None:
            found = [mutant for mutant in found if mutant.where == options.w]
        places = bench.run(partial(survivors, bench, found, options.v))
        left = [found[place] for place in places]
        explanations = Explanations.of(name, options.w)
        unknown = [mutant.key for mutant in left if not explanations.cover(mutant)]
        stale = explanations.here.keys() - {mutant.key for mutant in left}
        for said, keys in (
            ("no test notices this", unknown),
            ("this is explained, and no survivor", stale),
        ):
            for where, was, now in keys:
                bad = True
                print(f"\n{name}: {said}, in {where or 'the module'}\n  - {was}\n  + {now}")
        known = len(left) - len(unknown)
        rows.append((name, len(found), len(found) - len(left), known, len(unknown)))
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    print("\n| module | mutants | noticed | explained | left |\n|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())

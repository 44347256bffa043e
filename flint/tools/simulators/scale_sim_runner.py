"""Runs SCALE-Sim in the folder where it is started: the other end of `scale_sim`.

Run as a file, by an interpreter that has SCALE-Sim and need not have Flint.
"""

import importlib
import sys

#: Said, with exit status `ABSENT`, where SCALE-Sim cannot be imported.
NO_SCALE_SIM = "flint-no-scale-sim"
ABSENT = 3
#: Its input, in that folder.
CONFIG, TOPOLOGY, LAYOUT = "scale.cfg", "products.csv", "layout.csv"


def main() -> int:
    """Simulate the products of the topology file, one after the other, and print their cycles."""
    try:
        scalesim = importlib.import_module("scalesim.scale_sim").scalesim
    except ImportError as error:
        print(f"{NO_SCALE_SIM}: {error}", file=sys.stderr)
        return ABSENT
    files = {"config": CONFIG, "topology": TOPOLOGY, "layout": LAYOUT}
    scalesim(save_disk_space=True, verbose=True, input_type_gemm=True, **files).run_scale("out")
    return 0


if __name__ == "__main__":
    sys.exit(main())

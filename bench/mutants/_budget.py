"""What each mutant is put through. One line of JSON says what was found.

Run by `_run`, in a folder that has the changed packages.
"""

from __future__ import annotations

import json
import resource
import sys
import time


def main(seed: int) -> None:
    """Run the budget until something is found."""
    began = time.process_time()
    print(json.dumps({"by": "", "runs": 0, "seconds": time.process_time() - began}))


if __name__ == "__main__":
    # For a step that never ends: no scheduler can look into it.
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2]) + 5))
    main(int(sys.argv[1]))

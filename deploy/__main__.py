"""`python -m deploy`: the same as the console script `replay-service`."""

from __future__ import annotations

from deploy.cli import main

if __name__ == "__main__":
    main()

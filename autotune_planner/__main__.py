"""``python -m autotune_planner`` is ``autotune-plan``."""

from autotune_planner.cli.main import main

if __name__ == "__main__":
    main()

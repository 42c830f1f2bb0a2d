"""`python -m viewkeeper` is `vk`."""

from viewkeeper.cli import main

if __name__ == "__main__":
    main()

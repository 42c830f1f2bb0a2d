"""`python -m viewkeeper` is `vk`, and so is this file where a program is named by its file, as with spark-submit."""

from viewkeeper.cli import main

if __name__ == "__main__":
    main()

"""`python -m bayescal`: the same as `bayescal`."""

from bayescal.cli import main

if __name__ == "__main__":
    main()

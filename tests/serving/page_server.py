"""`bayescal serve` with the tiny backbone of the tests: python page_server.py BACKBONE PORT [MODEL]."""

import sys
from functools import partial
from pathlib import Path

from bayescal import FewShotClassifier
from bayescal.cli import main
from bayescal.serving import start
from old_files import makers

backbone, port, *model = sys.argv[1:]
name = makers().backbone_name(Path(backbone))
# What `fit` learns by default takes a minute; what is learned on the page is the same with a method that takes none.
start.FewShotClassifier = partial(FewShotClassifier, "logistic-regression", name, views=0)
sys.argv = ["bayescal", "serve", *model, "--port", port, "--backbone", name]
main()

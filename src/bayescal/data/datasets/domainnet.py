"""DomainNet (Peng et al. 2019): 345 things in six styles; the largest of the data sets here.

Folders as in the six archives of the project page. The page also has lists `clipart_train.txt`, `clipart_test.txt`, …
with lines `clipart/aircraft_carrier/clipart_001_000001.jpg 0`. Where all twelve are beside the folders (or in `txt/` or
`splits/`), images take their split from them, are learned from only if listed as train and tested on only if listed as
test, and images that no list names are left out. Without the lists every image of an environment is used, as DomainBed
does. clipart and painting are to be taken from the "cleaned" version, as below: the first one has many copies.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from bayescal.data.datasets.base import Fold, leave_one_out_folds, text_of
from bayescal.data.datasets.trees import Expected, Tree, as_words, tree_dataset
from bayescal.data.manifest import Manifest
from bayescal.errors import DataError

ENVIRONMENTS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
PAGE = "http://ai.bu.edu/M3SDA/"
_SERVER = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_CLEANED = ("clipart", "painting")
ARCHIVES = {
    name: f"{_SERVER}/groundtruth/{name}.zip" if name in _CLEANED else f"{_SERVER}/{name}.zip" for name in ENVIRONMENTS
}
LISTS = {
    f"{name}_{part}.txt": f"{_SERVER}/domainnet/txt/{name}_{part}.txt"
    for name in ENVIRONMENTS
    for part in ("train", "test")
}
CLASSES = """
aircraft_carrier airplane alarm_clock ambulance angel animal_migration ant anvil apple arm asparagus axe backpack
banana bandage barn baseball baseball_bat basket basketball bat bathtub beach bear beard bed bee belt bench bicycle
binoculars bird birthday_cake blackberry blueberry book boomerang bottlecap bowtie bracelet brain bread bridge
broccoli broom bucket bulldozer bus bush butterfly cactus cake calculator calendar camel camera camouflage campfire
candle cannon canoe car carrot castle cat ceiling_fan cello cell_phone chair chandelier church circle clarinet clock
cloud coffee_cup compass computer cookie cooler couch cow crab crayon crocodile crown cruise_ship cup diamond
dishwasher diving_board dog dolphin donut door dragon dresser drill drums duck dumbbell ear elbow elephant envelope
eraser eye eyeglasses face fan feather fence finger fireplace firetruck fire_hydrant fish flamingo flashlight
flip_flops floor_lamp flower flying_saucer foot fork frog frying_pan garden garden_hose giraffe goatee golf_club
grapes grass guitar hamburger hammer hand harp hat headphones hedgehog helicopter helmet hexagon hockey_puck
hockey_stick horse hospital hot_air_balloon hot_dog hot_tub hourglass house house_plant hurricane ice_cream jacket
jail kangaroo key keyboard knee knife ladder lantern laptop leaf leg lighter lighthouse lightning light_bulb line lion
lipstick lobster lollipop mailbox map marker matches megaphone mermaid microphone microwave monkey moon mosquito
motorbike mountain mouse moustache mouth mug mushroom nail necklace nose ocean octagon octopus onion oven owl
paintbrush paint_can palm_tree panda pants paper_clip parachute parrot passport peanut pear peas pencil penguin piano
pickup_truck picture_frame pig pillow pineapple pizza pliers police_car pond pool popsicle postcard potato
power_outlet purse rabbit raccoon radio rain rainbow rake remote_control rhinoceros rifle river rollerskates
roller_coaster sailboat sandwich saw saxophone school_bus scissors scorpion screwdriver sea_turtle see_saw shark sheep
shoe shorts shovel sink skateboard skull skyscraper sleeping_bag smiley_face snail snake snorkel snowflake snowman
soccer_ball sock speedboat spider spoon spreadsheet square squiggle squirrel stairs star steak stereo stethoscope
stitches stop_sign stove strawberry streetlight string_bean submarine suitcase sun swan sweater swing_set sword
syringe t-shirt table teapot teddy-bear telephone television tennis_racquet tent The_Eiffel_Tower
The_Great_Wall_of_China The_Mona_Lisa tiger toaster toe toilet tooth toothbrush toothpaste tornado tractor
traffic_light train tree triangle trombone truck trumpet umbrella underwear van vase violin washing_machine watermelon
waterslide whale wheel windmill wine_bottle wine_glass wristwatch yoga zebra zigzag
"""
_ABOUT = {
    "title": "DomainNet",
    "class_words": as_words(CLASSES, {"t-shirt": "t-shirt"}),
    "environment_words": as_words(ENVIRONMENTS),
    "images": 586_575,
    "layout": """
    domain_net/
        clipart/
            aircraft_carrier/
                clipart_001_000001.jpg
            airplane/ …             345 folders
        infograph/
        painting/
        quickdraw/
        real/
        sketch/
        clipart_train.txt, clipart_test.txt, …      (may be left out)""",
    "source": f"clipart.zip and painting.zip (the cleaned version), infograph.zip, quickdraw.zip, real.zip and "
    f"sketch.zip from {PAGE}, unpacked side by side; 17 GB. `bayescal data prepare domainnet --from FOLDER --download` "
    "fetches them.",
}
_TREE = Tree(Expected(**_ABOUT))


def read_domainnet(path: Path) -> Manifest:
    """The folders, or a CSV or JSON file; with the page's lists beside the folders, images have a split."""
    path = Path(path).expanduser()
    manifest = _TREE.read(path)
    if _TREE.expected.is_list(path):
        return manifest
    root, _ = _TREE.environment_folders(path)
    folder = next((f for f in (root, root / "txt", root / "splits") if all((f / n).is_file() for n in LISTS)), None)
    return manifest if folder is None else _with_splits(manifest, root, folder)


def domainnet_folds(manifest: Manifest) -> list[Fold]:
    """Each environment held out in turn, by the lists where there are any."""
    return leave_one_out_folds(manifest, by_split=bool((manifest.splits != "").any()))


def download_domainnet(folder: Path) -> Path:
    """Fetch the archives and lists into a folder, and unpack them side by side."""
    from bayescal.data.datasets.fetch import fetch, unpack

    for name, address in LISTS.items():
        fetch(address, folder / name)
    for name, address in ARCHIVES.items():
        if not (folder / name).is_dir():
            unpack(fetch(address, folder / f"{name}.zip"), folder / name, inner=name)
    return folder


def _with_splits(manifest: Manifest, root: Path, folder: Path) -> Manifest:
    """Keep the images that a list names, each with the split of that list."""
    splits = {os.path.abspath(root / name): part for name, part in _listed(folder)}
    marked = np.array([splits.get(path, "") for path in manifest.paths])
    if not (marked != "").any():
        raise DataError(f"{folder}: the lists name none of the images in {root}. Delete the lists to do without them.")
    return replace(manifest, splits=marked).select(marked != "")


def _listed(folder: Path) -> Iterator[tuple[str, str]]:
    """Path and split of each line."""
    for name in LISTS:
        for line in text_of(folder / name).splitlines():
            if line.strip():
                yield line.rsplit(maxsplit=1)[0], "train" if name.endswith("_train.txt") else "test"


DOMAINNET = tree_dataset(
    name="domainnet",
    shift="diversity",
    citation="Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019",
    read=read_domainnet,
    folds=domainnet_folds,
    download=download_domainnet,
    **_ABOUT,
)

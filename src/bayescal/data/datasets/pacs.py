"""PACS (Li et al. 2017): seven things in four styles.

Layout as DomainBed's download script leaves it; the released archive puts the environments into a folder `kfold`.
The lists of files that come beside it (train, crossval, test) are not used: each environment is held out whole.
"""

from bayescal.data.datasets.trees import as_words, tree_dataset

PACS = tree_dataset(
    name="pacs",
    title="PACS",
    shift="diversity",
    class_words=as_words("dog elephant giraffe guitar horse house person"),
    environment_words=as_words("art_painting cartoon photo sketch"),
    images=9991,
    layout="""
    PACS/                       (or PACS/kfold/, as in the archive)
        art_painting/
            dog/
                pic_001.jpg
            elephant/ giraffe/ guitar/ horse/ house/ person/
        cartoon/
        photo/
        sketch/""",
    source="PACS.zip, linked at http://www.eecs.qmul.ac.uk/~dl307/project_iccv2017 and in DomainBed's "
    "domainbed/scripts/download.py (https://github.com/facebookresearch/DomainBed). "
    "`bayescal data prepare` reads the archive.",
    citation="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017",
    base_classes=("dog", "elephant", "giraffe", "guitar", "horse"),
    new_classes=("house", "person"),
)

"""VLCS (Fang et al. 2013; the version of Torralba & Efros's four collections that DomainBed uses).

Folder names as in DomainBed (domainbed/misc/vlcs_files.txt): Caltech101, LabelMe, SUN09, VOC2007. They are shown to the
text tower as "caltech", "labelme", "sun" and "pascal": the years and numbers mean nothing to it. Copies with folders
CALTECH, LABELME, SUN and PASCAL are read too.
"""

from bayescal.data.datasets.trees import as_words, tree_dataset

VLCS = tree_dataset(
    name="vlcs",
    title="VLCS",
    shift="diversity",
    class_words=as_words("bird car chair dog person"),
    environment_words={"Caltech101": "caltech", "LabelMe": "labelme", "SUN09": "sun", "VOC2007": "pascal"},
    spellings={"Caltech101": ["caltech"], "SUN09": ["sun"], "VOC2007": ["pascal", "voc"]},
    images=10_729,
    layout="""
    VLCS/
        Caltech101/
            bird/
                1.jpg
            car/ chair/ dog/ person/
        LabelMe/
        SUN09/
        VOC2007/""",
    source="VLCS.tar.gz, linked in DomainBed's domainbed/scripts/download.py "
    "(https://github.com/facebookresearch/DomainBed). `bayescal data prepare` reads the archive.",
    citation="Fang et al., Unbiased Metric Learning: On the Utilization of Multiple Datasets and Web Images for "
    "Softening Bias, ICCV 2013",
)

"""Office-Caltech10 (Gong et al. 2012): the ten things that Office-31 and Caltech-256 share, from four cameras.

Folder names as in the copies that are around (the layout of ChristophRaab/Office_Caltech_DA_Dataset and of the
Transfer-Learning-Library): Caltech writes `backpack` where the others write `back_pack`, some copies write `laptop`,
and some put a folder `images` between environment and class. All of these are read.
"""

from bayescal.data.datasets.trees import as_words, tree_dataset

OFFICE_CALTECH10 = tree_dataset(
    name="office-caltech10",
    title="Office-Caltech10",
    shift="diversity",
    class_words=as_words(
        "back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector",
        {"back_pack": "backpack"},
    ),
    environment_words={
        "amazon": "amazon product picture",
        "caltech": "caltech",
        "dslr": "digital camera",
        "webcam": "webcam",
    },
    spellings={
        "back_pack": ["backpack"],
        "laptop_computer": ["laptop"],
        "headphones": ["headphone"],
        "caltech": ["caltech10"],
    },
    images=2533,
    layout="""
    office_caltech_10/
        amazon/
            back_pack/
                frame_0001.jpg
            bike/ calculator/ headphones/ keyboard/ laptop_computer/ monitor/ mouse/ mug/ projector/
        caltech/
        dslr/
        webcam/""",
    source="the images (not the SURF or DeCAF features) from "
    "https://github.com/ChristophRaab/Office_Caltech_DA_Dataset, or by way of "
    "https://github.com/jindongwang/transferlearning/tree/master/data#office-caltech10.",
    citation="Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012",
)

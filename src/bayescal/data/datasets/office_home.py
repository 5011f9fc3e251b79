"""OfficeHome (Venkateswara et al. 2017): 65 things found in offices and homes, in four styles.

Class folders as in the released archive OfficeHomeDataset_10072016 (the list agrees with the loaders of the
Transfer-Learning-Library). The archive writes "Real World" with a blank; `Real_World` and `RealWorld` are read too.
"""

from bayescal.data.datasets.trees import as_words, tree_dataset

CLASSES = """
Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer Couch
Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle
Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes
Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table
Telephone ToothBrush Toys Trash_Can Webcam
"""

OFFICE_HOME = tree_dataset(
    name="office-home",
    title="OfficeHome",
    shift="diversity",
    class_words=as_words(
        CLASSES, {"ToothBrush": "toothbrush", "Flipflops": "flip flops", "Postit_Notes": "post-it notes"}
    ),
    environment_words=as_words(["Art", "Clipart", "Product", "Real World"]),
    images=15_588,
    layout="""
    OfficeHomeDataset_10072016/     (any name)
        Art/
            Alarm_Clock/
                00001.jpg
            Backpack/ …             65 folders
        Clipart/
        Product/
        Real World/""",
    source="OfficeHomeDataset_10072016.zip, linked at http://hemanthdv.org/OfficeHome-Dataset/. "
    "`bayescal data prepare` reads the archive.",
    citation="Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017",
)

"""Class and environment names of the datasets whose shape the benchmarks take, as words."""

PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
PACS_ENVIRONMENTS = ("art painting", "cartoon", "photo", "sketch")

OFFICE_HOME_CLASSES = (
    "alarm clock", "backpack", "batteries", "bed", "bike", "bottle", "bucket", "calculator", "calendar", "candles",
    "chair", "clipboards", "computer", "couch", "curtains", "desk lamp", "drill", "eraser", "exit sign", "fan",
    "file cabinet", "flipflops", "flowers", "folder", "fork", "glasses", "hammer", "helmet", "kettle", "keyboard",
    "knives", "lamp shade", "laptop", "marker", "monitor", "mop", "mouse", "mug", "notebook", "oven",
    "pan", "paper clip", "pen", "pencil", "postit notes", "printer", "push pin", "radio", "refrigerator", "ruler",
    "scissors", "screwdriver", "shelf", "sink", "sneakers", "soda", "speaker", "spoon", "table", "telephone",
    "toothbrush", "toys", "trash can", "tv", "webcam",
)  # fmt: skip
OFFICE_HOME_ENVIRONMENTS = ("art", "clipart", "product", "real world")

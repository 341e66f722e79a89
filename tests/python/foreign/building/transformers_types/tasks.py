"""The types of models that Transformers lists, and for each the task that says most about it."""

from __future__ import annotations

# What trains with a loss of its own comes before what has none.
FIRST = (
    "SPEECH_SEQ_2_SEQ", "CTC", "RNNT", "TDT", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM",
    "MASKED_LM", "CAUSAL_LM", "ZERO_SHOT_OBJECT_DETECTION", "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "UNIVERSAL_SEGMENTATION", "SEMANTIC_SEGMENTATION",
    "INSTANCE_SEGMENTATION", "IMAGE_SEGMENTATION", "DEPTH_ESTIMATION", "NORMAL_ESTIMATION",
    "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION", "MASKED_IMAGE_MODELING", "IMAGE_TO_IMAGE",
    "TEXT_TO_SPECTROGRAM", "TEXT_TO_WAVEFORM", "TIME_SERIES_PREDICTION", "TIME_SERIES_REGRESSION",
    "SEQUENCE_CLASSIFICATION", "QUESTION_ANSWERING", "VISUAL_QUESTION_ANSWERING", "MASK_GENERATION",
    "KEYPOINT_DETECTION", "KEYPOINT_MATCHING", "POSE_ESTIMATION", "POINTMAP_ESTIMATION", "TEXT_RECOGNITION",
    "TABLE_RECOGNITION", "CAUSAL_IMAGE_MODELING", "RETRIEVAL", "IMAGE_MATTING", "PRETRAINING", "BASE", "BACKBONE",
)  # fmt: skip
_BEFORE, _AFTER = "MODEL_FOR_", "_MAPPING_NAMES"


def tasks() -> dict[str, tuple[str, str]]:
    """By type its task and class."""
    from transformers.models.auto import modeling_auto

    known = {
        name.removeprefix(_BEFORE).removesuffix(_AFTER): classes
        for name, classes in vars(modeling_auto).items()
        if name.startswith(_BEFORE) and name.endswith(_AFTER)
    }
    known["BASE"] = modeling_auto.MODEL_MAPPING_NAMES
    order = [task for task in FIRST if task in known] + sorted(known.keys() - set(FIRST))
    by_name: dict[str, tuple[str, str]] = {}
    for task in order:
        for name, kind in known[task].items():
            by_name.setdefault(name, (task, kind[0] if isinstance(kind, (tuple, list)) else kind))
    return by_name


def folder_of(name: str) -> str:
    """Where a type is written: types of one folder are one architecture."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        folder: str = CONFIG_MAPPING[name].__module__.split(".")[2]
    except Exception:
        return name
    return folder

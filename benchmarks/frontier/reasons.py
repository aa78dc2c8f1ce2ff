"""Why a pass does not win a policy's point: what a person found, by program, pass and policy."""

from __future__ import annotations

_LSTM = "the same values are stacked; the bodies of the loops take a quarter of a MiB more"
_FOR_TIME = (
    "planned for time: the policy's products are fewer FLOP, but take longer by the cost model, "
    "since those of attention wait for memory"
)

_ASSOCIATIVE = (
    "only cheap work is recomputed, as by the policy: by the model the policy's program takes 1376 "
    "MiB of temporaries and the plan's 1424, by XLA 1120 and 1392"
)
_ELEMENTWISE = "no product more; the rest is elementwise work, most of which fuses"
_CHEAPER_AGAIN = (
    "the scores of attention are computed again on purpose: by the roofline that takes less time "
    "than to write and to read them"
)
_KEEPS_CHECKPOINTS = "`remat` leaves a user's checkpoints as they are; `fit` undoes them"

_ON_H100: dict[tuple[str, str, str], str] = {
    ("gpt_scanned", "remat", "dots_with_no_batch_dims_saveable"): _FOR_TIME,
    ("llama", "remat", "dots_saveable"): (
        "level cheap is 5 MiB larger; the next plan repeats a product"
    ),
    ("llama", "remat", "dots_with_no_batch_dims_saveable"): _FOR_TIME,
    ("llama", "remat", "nothing_saveable"): (
        "the same values are alive at the peak, but XLA packs the buffers less well"
    ),
    ("mixture_of_experts", "remat", "dots_saveable"): (
        "to keep the same values takes XLA 4 MiB more; the next plan repeats an expert's product"
    ),
    ("mixture_of_experts", "remat", "nothing_saveable"): "some hundred bytes",
    ("lstm", "remat", "dots_saveable"): _LSTM,
    ("lstm", "remat", "dots_with_no_batch_dims_saveable"): _LSTM,
    ("lstm", "remat", "nothing_saveable"): _LSTM,
    ("associative_scan", "fit", "dots_saveable"): _ASSOCIATIVE,
    ("associative_scan", "fit", "dots_with_no_batch_dims_saveable"): _ASSOCIATIVE,
    ("associative_scan", "remat", "dots_saveable"): _ASSOCIATIVE,
    ("associative_scan", "remat", "dots_with_no_batch_dims_saveable"): _ASSOCIATIVE,
    ("forces", "fit", "dots_saveable"): _ELEMENTWISE,
    ("forces", "fit", "dots_with_no_batch_dims_saveable"): _ELEMENTWISE,
    ("forces", "remat", "dots_saveable"): _ELEMENTWISE,
    ("forces", "remat", "dots_with_no_batch_dims_saveable"): _ELEMENTWISE,
    ("maml", "remat", "everything_saveable"): _ELEMENTWISE,
    ("checkpointed_gpt", "fit", "everything_saveable"): _CHEAPER_AGAIN,
    ("checkpointed_gpt", "fit", "dots_saveable"): _CHEAPER_AGAIN,
    ("checkpointed_gpt", "remat", "everything_saveable"): _KEEPS_CHECKPOINTS,
    ("checkpointed_gpt", "remat", "dots_saveable"): _KEEPS_CHECKPOINTS,
    ("checkpointed_gpt", "remat", "dots_with_no_batch_dims_saveable"): _KEEPS_CHECKPOINTS,
}

REASONS = {"h100_sxm": _ON_H100}
"""By name of the target."""

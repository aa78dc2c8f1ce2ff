"""Why a pass does not win a policy's point: what a person found, by program, pass and policy."""

from __future__ import annotations

_LSTM = "the same values are stacked; the bodies of the loops take a quarter of a MiB more"
_FOR_TIME = (
    "planned for time: the policy's products are fewer FLOP, but take longer by the cost model, "
    "since those of attention wait for memory"
)

REASONS: dict[tuple[str, str, str], str] = {
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
}

"""Why a pass does not win a policy's point: what a person found, by program, pass and policy."""

from __future__ import annotations

_LSTM = "the same values are stacked; the bodies of the loops take a quarter of a MiB more"
_FOR_TIME = (
    "planned for time: the policy's products are fewer FLOP, but take longer by the cost model, "
    "since those of attention wait for memory"
)

_ASSOCIATIVE = (
    "only cheap work is recomputed, as by the policy: by the model of then the policy's program "
    "took 1376 MiB of temporaries and the plan's 1424, by XLA 1120 and 1392"
)
_SCAN_FOR_TIME = (
    "planned for time: what the policy repeats of the scan is fewer FLOP than the plan's products, "
    "but takes longer by the cost model, since it waits for memory"
)
_ELEMENTWISE = "no product more; the rest is elementwise work, most of which fuses"
_CHEAPER_AGAIN = (
    "the scores of attention are computed again on purpose: by the roofline that takes less time "
    "than to write and to read them"
)
_SOME_BYTES = "256 bytes more"
_HEAD = (
    "the loss head decides: at its peak the bf16 logits, 2048 MiB, are kept beside their gradients "
    "in float32 and in bf16; `fit` runs the head in chunks"
)
_NOT_TRIED = (
    "the plan that `remat` makes without a budget, 3225 MiB and .7 GFLOP, is larger than this by "
    "the model, and so it is not tried"
)
_KEEPS_CHECKPOINTS = "`remat` leaves a user's checkpoints as they are; `fit` undoes them"

_ON_H100: dict[tuple[str, str, str], str] = {
    ("gpt_scanned", "remat", "dots_with_no_batch_dims_saveable"): _FOR_TIME,
    ("gpt_scanned", "remat", "nothing_saveable"): (
        "the plan nearest to the budget takes more: 1138 MiB on jax 0.10.2, 1161 on 0.12; the "
        "next one repeats more"
    ),
    ("llama", "remat", "dots_saveable"): (
        "level cheap is 59 MiB larger; the next plan repeats a product"
    ),
    ("llama", "remat", "dots_with_no_batch_dims_saveable"): _FOR_TIME,
    ("llama", "remat", "nothing_saveable"): (
        "the same values are alive at the peak, but XLA packs the buffers less well"
    ),
    ("llama", "fit", "dots_with_no_batch_dims_saveable"): _FOR_TIME,
    ("llama", "fit", "nothing_saveable"): (
        "at the floor XLA keeps what the gated layer's gradients are made of until after the "
        "attention's: a plan of 2094 MiB takes 2255, the lowest one 2124"
    ),
    ("mixture_of_experts", "remat", "dots_saveable"): (
        "to keep the same values takes XLA .4 MiB more; the next plan repeats an expert's product"
    ),
    ("mixture_of_experts", "remat", "nothing_saveable"): "6 KiB more",
    ("mixture_of_experts", "fit", "nothing_saveable"): "6 KiB more",
    ("lstm", "remat", "dots_saveable"): _LSTM,
    ("lstm", "remat", "dots_with_no_batch_dims_saveable"): _LSTM,
    ("lstm", "remat", "everything_saveable"): _ELEMENTWISE,
    ("lstm", "remat", "nothing_saveable"): _LSTM,
    ("lstm", "fit", "nothing_saveable"): _LSTM,
    **{
        ("two_level_scan", name, policy): why
        for name in ("fit", "remat")
        for policy, why in (
            ("everything_saveable", _ELEMENTWISE),
            ("dots_saveable", _SOME_BYTES),
            ("dots_with_no_batch_dims_saveable", _SOME_BYTES),
            ("nothing_saveable", _ELEMENTWISE),
        )
    },
    ("gpt_131072", "remat", "everything_saveable"): _ELEMENTWISE,
    ("gpt_131072", "remat", "dots_saveable"): _HEAD,
    ("gpt_131072", "remat", "dots_with_no_batch_dims_saveable"): _HEAD,
    ("gpt_131072", "remat", "nothing_saveable"): _HEAD,
    ("llama_128256", "remat", "nothing_saveable"): _ELEMENTWISE,
    ("associative_scan", "fit", "dots_saveable"): _SCAN_FOR_TIME,
    ("associative_scan", "fit", "dots_with_no_batch_dims_saveable"): _SCAN_FOR_TIME,
    ("associative_scan", "remat", "dots_saveable"): _ASSOCIATIVE,
    ("associative_scan", "remat", "dots_with_no_batch_dims_saveable"): _ASSOCIATIVE,
    ("associative_scan", "remat", "nothing_saveable"): (
        "the model is wrong: of what it takes to need 915 MiB XLA makes 1232 (jax "
        "0.10.2), of 1026 MiB 954 (0.12); `fit` runs the layers in chunks"
    ),
    ("message_passing", "fit", "dots_saveable"): _NOT_TRIED,
    ("message_passing", "fit", "dots_with_no_batch_dims_saveable"): _NOT_TRIED,
    ("forces", "remat", "everything_saveable"): _ELEMENTWISE,
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

_ON_V5P: dict[tuple[str, str, str], str] = {
    ("mixture_of_experts", "fit", "dots_saveable"): (
        "the plan that repeats no product takes .9 MiB more"
    ),
    ("mixture_of_experts", "fit", "nothing_saveable"): "12 KiB more",
}

_ON_8_H100S: dict[tuple[str, str, str], str] = {
    ("experts", "fit", "dots_saveable"): (
        "the policy gathers the experts' weights again and sends 370 MiB, 192 us more by the "
        "links; the plan of that memory sends 298 MiB, as the program does, and repeats products, "
        "58 us by the model"
    ),
    ("experts", "fit", "dots_with_no_batch_dims_saveable"): (
        "the plans of that memory repeat products that the policy keeps, and send 346 or 370 MiB, "
        "as the policy does; what it keeps in as many bytes was not found"
    ),
}

_ON_4_V5PS: dict[tuple[str, str, str], str] = {
    ("experts", "fit", "dots_saveable"): (
        "the policy gathers again, and sends 372 MiB; the plan of that memory sends 324, as the "
        "program does, and repeats products, 52 us by the model"
    ),
    ("experts", "fit", "nothing_saveable"): (
        "the plan of the floor repeats what the policy does and sends 412 MiB for 410; what takes "
        "16 MiB more there was not found"
    ),
}

REASONS = {
    "h100_sxm": _ON_H100,
    "v5p": _ON_V5P,
    "h100_sxmx8": _ON_8_H100S,
    "v5px4": _ON_4_V5PS,
}
"""By name of the yardstick."""

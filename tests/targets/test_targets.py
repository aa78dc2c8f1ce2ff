"""The devices hloom plans for: hloom/targets/."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hloom import targets
from hloom._jax import DeviceFacts
from hloom.passes.analysis.cost import CPU_SPEED, Speed
from hloom.passes.framework.base import Target
from hloom.targets import devices, gpu_speed, text_proto


def test_the_known_targets() -> None:
    assert targets.names() == ("cpu", "h100_sxm")
    assert targets.load("cpu") == Target("cpu", "cpu", None)
    h100 = targets.load("h100_sxm")
    assert (h100.platform, h100.name) == ("cuda", "h100_sxm")
    assert (h100.memory_bytes, h100.usable_bytes) == (84_942_979_072, 67_954_383_257)


def test_every_description_is_read() -> None:
    for name in targets.names():
        assert targets.load(name).name == name


def test_a_path_is_read_like_a_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.txtpb"
    file.write_text(targets.text("h100_sxm"))
    assert targets.load(str(file)) == dataclasses.replace(targets.load("h100_sxm"), name="mine")


@pytest.mark.parametrize("read", [targets.load, targets.text])
def test_an_unknown_name_lists_the_known_ones(read: object) -> None:
    assert callable(read)
    with pytest.raises(targets.TargetError) as caught:
        read("h100_smx")
    assert str(caught.value) == (
        "unknown target 'h100_smx'. Did you mean 'h100_sxm'? Targets: cpu, h100_sxm. A path of a "
        "description works too, such as ./h100_smx.txtpb"
    )


def test_the_cpu_has_no_description() -> None:
    with pytest.raises(targets.TargetError, match="XLA takes the host as it is"):
        targets.text("cpu")


GPU = 'gpu_device_info { device_memory_size: 8 }\nplatform_name: "CUDA"\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (GPU.split("\n")[0], "expected one platform_name, got 0"),
        (GPU + 'platform_name: "ROCM"', "expected one platform_name, got 2"),
        ('platform_name: "CUDA"', "expected one gpu_device_info, got 0"),
        (GPU.replace("device_memory_size: 8", ""), "expected one device_memory_size, got 0"),
        (
            GPU.replace("8", "0"),
            "device_memory_size is a positive number of bytes, got 0",
        ),
        (
            GPU.replace("8", "1.5"),
            "device_memory_size is a positive number of bytes, got 1.5",
        ),
        (
            GPU.replace("8", "8 core_count: 3 cuda_compute_capability: 9"),
            "cuda_compute_capability is a message, core_count a number",
        ),
        (
            GPU.replace("gpu_device_info {", "gpu_device_info: 3 a {"),
            "platform_name is text and gpu_device_info is a message",
        ),
    ],
)
def test_a_description_without_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txtpb").write_text(content)
    with pytest.raises(targets.TargetError) as caught:
        targets.load("a.txtpb")
    assert str(caught.value) == f"a.txtpb: {said}"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(targets.TargetError) as caught:
        targets.load(f"{tmp_path}/no.txtpb")
    assert str(caught.value) == f"{tmp_path}/no.txtpb: No such file or directory"
    (tmp_path / "binary.txtpb").write_bytes(b"\xff\xfe")
    with pytest.raises(targets.TargetError) as caught:
        targets.load(f"{tmp_path}/binary.txtpb")
    assert str(caught.value) == (
        f"{tmp_path}/binary.txtpb: not text: a target is a GpuTargetConfigProto in text form"
    )


# Speed.


def test_the_h100s_speed_is_near_its_data_sheet() -> None:
    # https://www.nvidia.com/en-us/data-center/h100/: dense, of the SXM part.
    sheet = {8: 1979e12, 16: 989e12, 32: 495e12, 64: 67e12}
    for speed in (targets.load("h100_sxm").speed, gpu_speed.of_gpu((9, 0), 132)):
        assert dict(speed.matrix_flops_per_s) == pytest.approx(sheet, rel=0.1)
        assert speed.vector_flops_per_s == pytest.approx(67e12, rel=0.1)
        assert speed.bytes_per_s == pytest.approx(3.35e12, rel=0.01)


@pytest.mark.parametrize(
    ("capability", "cores", "half_flops_per_s", "bytes_per_s"),
    [
        ((7, 0), 80, 125e12, 900e9),
        ((8, 0), 108, 312e12, 2039e9),
        ((8, 6), 84, 149.7e12, 696e9),
        ((8, 9), 142, 362e12, 864e9),
        ((10, 0), 148, 2250e12, 8e12),
        ((12, 0), 170, 419e12, 1792e9),
    ],
)
def test_other_gpus_are_near_their_data_sheets(
    capability: tuple[int, int], cores: int, half_flops_per_s: float, bytes_per_s: float
) -> None:
    speed = gpu_speed.of_gpu(capability, cores)
    assert speed.matrix_rate(16) == pytest.approx(half_flops_per_s, rel=0.05)
    assert speed.bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)


def test_a_gpu_of_tomorrow_is_like_the_newest_of_today() -> None:
    assert gpu_speed.of_gpu((99, 0), 100) == gpu_speed.of_gpu((12, 0), 100)
    assert gpu_speed.of_gpu((10, 3), 100) == gpu_speed.of_gpu((10, 0), 100)
    assert gpu_speed.of_gpu((5, 0), 100) == gpu_speed.of_gpu((7, 0), 100)


# The devices that JAX compiles for.

H100 = "NVIDIA H100 80GB HBM3"


def test_a_described_device_that_is_not_here() -> None:
    facts = DeviceFacts(H100, (9, 0), 132)
    assert devices.target_of("cuda", [facts]) == targets.load("h100_sxm")


def test_a_described_device_that_is_here_tells_its_own_limit() -> None:
    facts = [DeviceFacts(H100, (9, 0), 132, limit_bytes=limit) for limit in (60_000, 50_000)]
    target = devices.target_of("cuda", facts)
    assert (target.name, target.memory_bytes, target.usable_bytes) == ("h100_sxm", 50_000, 50_000)
    assert target.speed == targets.load("h100_sxm").speed


def test_a_device_without_a_description() -> None:
    target = devices.target_of("cuda", [DeviceFacts("NVIDIA A100-SXM4-80GB", (8, 0), 108, 70_000)])
    assert (target.platform, target.name, target.usable_bytes) == ("cuda", "cuda", 70_000)
    assert target.speed == gpu_speed.of_gpu((8, 0), 108)
    unknown = devices.target_of("rocm", [DeviceFacts("gfx942")])
    assert (unknown.platform, unknown.memory_bytes, unknown.usable_bytes) == ("rocm", None, None)
    assert unknown.speed == Speed()


def test_virtual_cpu_devices_share_the_machine() -> None:
    one = devices.target_of("cpu", [DeviceFacts("cpu")])
    four = devices.target_of("cpu", [DeviceFacts("cpu")] * 4)
    assert one.speed == CPU_SPEED
    assert one.memory_bytes is not None
    assert one.usable_bytes is not None
    assert four.memory_bytes == one.memory_bytes // 4
    assert 2**28 < one.usable_bytes < one.memory_bytes


def test_the_text_form_is_read() -> None:
    text = r"""
    # a comment
    whole: 3 negative: -4, fraction: 1.5 exponent: 1e3;
    text: "say \"x\"" word: ACCELERATED_FEATURES
    inner { a: 1 inner: { a: 2 } }
    inner {}
    """
    assert text_proto.parse(text, source="a") == {
        "whole": [3],
        "negative": [-4],
        "fraction": [1.5],
        "exponent": [1000.0],
        "text": ['say "x"'],
        "word": ["ACCELERATED_FEATURES"],
        "inner": [{"a": [1], "inner": [{"a": [2]}]}, {}],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\n  b 2", "a:2:5: expected ':' or '{' after 'b', got '2'"),
        ("a:", "a:1:3: expected a value for 'a', got the end of the file"),
        ("a: }", "a:1:4: expected a value for 'a', got '}'"),
        ("a { b: 1", "a:1:3: this '{' has no '}'"),
        ("a: 1 }", "a:1:6: expected a field name, got '}'"),
        ("a: 1\n$", "a:2:1: unexpected character '$'"),
        ('a: "open', "a:1:4: unexpected character '\"'"),
        ("a: 12abc", "a:1:4: unexpected character '1'"),
        ("a: [1]", "a:1:4: unexpected character '['"),
    ],
)
def test_a_mistake_in_the_text_form(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        text_proto.parse(text, source="a")
    assert str(caught.value) == said

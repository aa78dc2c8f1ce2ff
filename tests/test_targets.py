"""The devices hloom plans for: hloom/targets/."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloom import targets
from hloom.passes.base import Target
from hloom.targets import text_proto


def test_the_known_targets() -> None:
    assert targets.names() == ("cpu", "h100_sxm")
    assert targets.load("cpu") == Target("cpu", "cpu", None)
    assert targets.load("h100_sxm") == Target("cuda", "h100_sxm", 84_942_979_072)


def test_every_description_is_read() -> None:
    for name in targets.names():
        assert targets.load(name).name == name


def test_a_path_is_read_like_a_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.txtpb"
    file.write_text(targets.text("h100_sxm"))
    assert targets.load(str(file)) == Target("cuda", "mine", 84_942_979_072)


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
